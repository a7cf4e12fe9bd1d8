"""The parts of a probe of several nodes that need torch: the torchrun agent's store, and collectives between nodes.

One rank per node takes part in the collective, on its first device: with several interfaces per node the true rate may
be higher. Stores made here listen on the address of the chosen interface alone. The accelerator branch has not been
run on GPUs.
"""

from __future__ import annotations

import socket
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stratadvisor.probe.collectives import CPU_MESSAGE_BYTES, GPU_MESSAGE_BYTES, QUICK_MESSAGE_BYTES, sweep
from stratadvisor.probe.torch_clock import open_device

_PREFIX = "stratadvisor/probe"
_OPEN: dict[str, Any] = {}
"""The store that this process serves, with its socket; both must live until the others are done."""


def rendezvous(*, address: str, port: int, value: str, wait_seconds: float) -> str:
    """Publish ``value`` at the store that torchrun's agent serves, or wait for the one that the first node published.

    An empty ``value`` asks. The store is the job's own, so what lies there is as trustworthy as the job.
    """
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=wait_seconds)
    )
    if value:
        store.set(f"{_PREFIX}/hub", value)
        return value
    store.wait([f"{_PREFIX}/hub"], timedelta(seconds=wait_seconds))
    return str(store.get(f"{_PREFIX}/hub").decode())


def open_store(*, address: str, wait_seconds: float) -> int:
    """Serve a store on ``address`` and return its port; torch by itself would listen on all interfaces."""
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = int(listener.getsockname()[1])
    # the store closes the descriptor that it is given
    descriptor = listener.detach()
    _OPEN["store"] = dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=wait_seconds),
        master_listen_fd=descriptor,
    )
    return port


def sweep_between(
    *,
    position: int,
    size: int,
    address: str,
    port: int,
    device: str,
    threads: int,
    wait_seconds: float,
    budget_seconds: float = 5.0,
    quick: bool = False,
) -> dict[str, Any]:
    """Time all-reduces among ``size`` nodes, as the one at ``position``; return the fields of ``SweepTimes``."""
    target = open_device(device, threads)
    backend = "nccl" if target.type == "cuda" else "gloo"
    sizes: tuple[int, ...] = CPU_MESSAGE_BYTES if backend == "gloo" else GPU_MESSAGE_BYTES
    if position == 0:
        store = _OPEN["store"]
    else:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=wait_seconds)
        )
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"{_PREFIX}/group", store),  # type: ignore[attr-defined]
        rank=position,
        world_size=size,
        timeout=timedelta(seconds=wait_seconds),
    )
    try:
        return asdict(sweep(target, QUICK_MESSAGE_BYTES if quick else sizes, budget_seconds))
    finally:
        dist.destroy_process_group()
