"""Nodes of a job hand their profiles to the first one and time all-reduces among themselves.

They meet at a key-value store. Who has not come when the time is up is named and left out; the group for the sweep
is formed of those that came, so that one dead node costs one wait. One rank per node takes part, on its first device:
with several interfaces per node the true rate may be higher. The accelerator branch has not been run on GPUs.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stratadvisor.probe.collectives import CPU_MESSAGE_BYTES, GPU_MESSAGE_BYTES, QUICK_MESSAGE_BYTES, sweep
from stratadvisor.probe.found import Gathered, SweepTimes
from stratadvisor.probe.torch_clock import open_device

_PREFIX = "stratadvisor/probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    store: Any
    """torch.distributed.Store."""
    node_rank: int
    num_nodes: int

    def gather(self, document: str, wait_seconds: float) -> tuple[dict[int, str], tuple[int, ...]]:
        """Return the documents that arrived (first node only) and the ranks of all nodes that came."""
        self.store.set(f"{_PREFIX}/document/{self.node_rank}", document)
        if self.node_rank:
            self.store.wait([f"{_PREFIX}/arrived"], timedelta(seconds=2 * wait_seconds))
            text = self.store.get(f"{_PREFIX}/arrived").decode()
            return {}, tuple(int(part) for part in text.split(","))
        end = time.monotonic() + wait_seconds
        documents: dict[int, str] = {}
        for rank in range(self.num_nodes):
            key = f"{_PREFIX}/document/{rank}"
            with contextlib.suppress(dist.DistStoreError):
                self.store.wait([key], timedelta(seconds=max(0.1, end - time.monotonic())))
                documents[rank] = self.store.get(key).decode()
        self.store.set(f"{_PREFIX}/arrived", ",".join(str(rank) for rank in documents))
        return documents, tuple(documents)

    def leave(self, came: tuple[int, ...], wait_seconds: float) -> None:
        """Keep the store alive until everybody is done with it."""
        self.store.set(f"{_PREFIX}/done/{self.node_rank}", "1")
        if self.node_rank == 0:
            with contextlib.suppress(dist.DistStoreError):
                self.store.wait([f"{_PREFIX}/done/{rank}" for rank in came], timedelta(seconds=wait_seconds))


def meet(
    *,
    node_rank: int,
    num_nodes: int,
    address: str,
    port: int,
    store_is_running: bool,
    document: str,
    device: str,
    threads: int,
    wait_seconds: float,
    budget_seconds: float = 5.0,
    quick: bool = False,
) -> Gathered:
    """Hand over this node's document, take part in the sweep, and, on the first node, return what came together."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        is_master=node_rank == 0 and not store_is_running,
        wait_for_workers=False,
        timeout=timedelta(seconds=wait_seconds),
    )
    meeting = _Meeting(store=store, node_rank=node_rank, num_nodes=num_nodes)
    documents, came = meeting.gather(document, wait_seconds)
    times: SweepTimes | None = None
    reason = "" if len(came) > 1 else "no second node came"
    if len(came) > 1 and node_rank in came:
        try:
            times = _sweep(
                store=store,
                came=came,
                node_rank=node_rank,
                device=device,
                threads=threads,
                wait_seconds=wait_seconds,
                budget_seconds=budget_seconds,
                quick=quick,
            )
        except RuntimeError as problem:
            reason = str(problem).splitlines()[0][:300]
    with contextlib.suppress(RuntimeError):
        meeting.leave(came, wait_seconds)
    missing = tuple(rank for rank in range(num_nodes) if rank not in came)
    return Gathered(documents=documents, missing=missing, sweep=times, sweep_reason=reason)


def _sweep(
    *,
    store: Any,
    came: tuple[int, ...],
    node_rank: int,
    device: str,
    threads: int,
    wait_seconds: float,
    budget_seconds: float,
    quick: bool,
) -> SweepTimes:
    target = open_device(device, threads)
    backend = "nccl" if target.type == "cuda" else "gloo"
    sizes: tuple[int, ...] = CPU_MESSAGE_BYTES if backend == "gloo" else GPU_MESSAGE_BYTES
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"{_PREFIX}/group", store),  # type: ignore[attr-defined]
        rank=came.index(node_rank),
        world_size=len(came),
        timeout=timedelta(seconds=wait_seconds),
    )
    try:
        return sweep(target, QUICK_MESSAGE_BYTES if quick else sizes, budget_seconds)
    finally:
        dist.destroy_process_group()
