"""Who takes part: ranks, nodes, shares, device; process groups made and taken down in one place."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from .config import ConfigError, TrainConfig, TrainingError
from .transport import Address, Listener

_SESSIONS = itertools.count()
"""Each session of a process has keys of its own in the launcher's store."""
LEAVE_SECONDS = 60
DEFAULT_TIMEOUT_SECONDS = 1800
"""A rank that waits longer than this for another gives up; saving a large checkpoint must fit into it."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The place of this process among all."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    node_of_rank: tuple[int, ...]
    group_of_rank: tuple[int, ...]
    """Index into ``config.groups``."""
    batch_of_rank: tuple[int, ...]
    """Sequences per optimizer step."""
    micro_batches: int
    """Micro-batches per optimizer step of this rank."""
    ranks_per_sample: int = 1
    """Neighbouring ranks that take the same samples: the tensor-parallel degree."""
    server: Any = None
    """Engine async_sgd: the server's listener on rank 0, its address elsewhere."""
    link: Any = None
    """Engine async_sgd: a connection to the server that is open already."""
    control: Any = None
    """Process group over gloo for host-side values; None in a single process."""
    store: Any = None

    @property
    def node_ranks(self) -> list[int]:
        """Ranks on this node."""
        return [r for r, node in enumerate(self.node_of_rank) if node == self.node_of_rank[self.rank]]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(set(self.node_of_rank))

    @property
    def global_batch_size(self) -> int:
        """Sequences of all ranks in one optimizer step."""
        return sum(self.shares)

    @property
    def shares(self) -> list[int]:
        """Sequences of each data-parallel rank in one optimizer step."""
        return list(self.batch_of_rank[:: self.ranks_per_sample])

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values (host, same shape everywhere) of all ranks, stacked by rank."""
        if self.control is None:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.world_size)]
        dist.all_gather(parts, values, group=self.control)
        return torch.stack(parts)

    def gather_texts(self, text: str) -> list[str]:
        """Return a text of every rank, by rank."""
        if self.control is None:
            return [text]
        texts: list[Any] = [None] * self.world_size
        dist.all_gather_object(texts, text, group=self.control)
        return texts

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def announce_stop(self) -> None:
        """Let the other ranks know that this one was asked to stop; waits for nobody."""
        if self.store is not None:
            self.store.set("stop", "1")

    def stop_announced(self) -> bool:
        """Return whether any rank was asked to stop."""
        return self.store is not None and bool(self.store.check(["stop"]))


_PEER_LOSS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out waiting",
    "timed out",
    "failed to connect",
    "Software caused connection abort",
    "remote process exited",
)
"""What gloo, NCCL and the launcher's store say of a process that is gone or silent."""


def peer_loss(problem: RuntimeError) -> str | None:
    """Return what an error of a collective says about a lost process in one line, None for any other error."""
    text = str(problem)
    if isinstance(problem, dist.DistError) or any(sign in text for sign in _PEER_LOSS):
        return " ".join(text.splitlines()[0].split())[:300] if text else type(problem).__name__
    return None


def _environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise TrainingError(f"the environment variable {name} must be a whole number, not {text!r}") from None


def find_device(config: TrainConfig, local_rank: int) -> torch.device:
    """Return the device of a rank.

    Raises:
        TrainingError: there is none of the planned kind, or this torch cannot use it.

    """
    if config.device_kind == "cpu":
        return torch.device("cpu")
    if config.device_kind not in ("cuda", "rocm"):
        raise TrainingError(f"device_kind {config.device_kind!r} is not supported by this runtime: cuda, rocm or cpu")
    if not torch.cuda.is_available():
        raise TrainingError(
            f"the plan is for {config.device_kind} devices, but this torch ({torch.__version__}) sees none here"
        )
    if local_rank >= torch.cuda.device_count():
        raise TrainingError(
            f"local rank {local_rank} has no device: {torch.cuda.device_count()} visible; start fewer processes"
        )
    if config.device_kind == "cuda":
        check_kernels(torch.cuda.get_device_capability(local_rank), torch.cuda.get_arch_list())
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def check_kernels(capability: tuple[int, int], built_for: list[str]) -> None:
    """Refuse a device that this torch has no kernels for; torch itself lists it and fails at the first kernel.

    ``sm_90`` runs on 9.x from 9.0, ``compute_90`` (compiled at run time) on everything from 9.0.

    Raises:
        TrainingError: neither is there for the device.

    """
    for name in built_for:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdigit():
            continue
        made = int(digits[:-1] or 0), int(digits[-1])
        if made <= capability and (kind == "compute" or made[0] == capability[0]):
            return
    if built_for:
        raise TrainingError(
            f"this torch ({torch.__version__}) has kernels for {', '.join(built_for)}, none of which run on compute"
            f" capability {capability[0]}.{capability[1]}: install a build for a newer (or, for old cards, older) CUDA"
        )


def own_group(config: TrainConfig, rank: int, hostname: str) -> int:
    """Return which group of the plan this process belongs to.

    STRATADVISOR_NODE_CLASS says it; else the host name, where the plan knows it; else the order of ranks.
    """
    wanted = os.environ.get("STRATADVISOR_NODE_CLASS", "")
    classes = [group.node_class for group in config.groups]
    if wanted:
        if wanted not in classes:
            raise TrainingError(f"STRATADVISOR_NODE_CLASS is {wanted!r}, the plan has {', '.join(classes)}")
        return classes.index(wanted)
    by_host = [i for i, group in enumerate(config.groups) if hostname in group.hostnames]
    return by_host[0] if len(by_host) == 1 else config.groups.index(config.group_of_rank(rank))


def _start_groups(config: TrainConfig, device: torch.device, rank: int, world_size: int) -> tuple[Any, Any]:
    """Return (control group, store)."""
    timeout = timedelta(seconds=float(config.settings.get("timeout_seconds", DEFAULT_TIMEOUT_SECONDS)))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and config.backend == "nccl" else "gloo"
    try:
        if dist.is_initialized():  # by a framework that started this process, such as Ray Train
            store = distributed_c10d._get_default_store()  # noqa: SLF001
            own_keys = PrefixStore(f"session-{next(_SESSIONS)}", store)
            return dist.new_group(backend="gloo", timeout=timeout), PrefixStore("signals", own_keys)
        if "MASTER_ADDR" in os.environ:
            store, rank, world_size = next(iter(rendezvous("env://", rank, world_size, timeout=timeout)))
        else:
            store = HashStore()
        own_keys = PrefixStore(f"session-{next(_SESSIONS)}", store)
        dist.init_process_group(
            backend,
            store=PrefixStore("groups", own_keys),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
            device_id=None if backend == "gloo" else device,
        )
        return dist.new_group(backend="gloo", timeout=timeout), PrefixStore("signals", own_keys)
    except (RuntimeError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise TrainingError(f"rank {rank} of {world_size} cannot join the others: {reason}") from problem


@contextmanager
def session(config: TrainConfig) -> Iterator[Context]:
    """Join the other ranks (environment of torchrun, srun or the deepspeed launcher), and leave cleanly at the end.

    A default group that is open already is taken as it is, and closed at the end as well.
    """
    rank, world_size = _environment("RANK", 0), _environment("WORLD_SIZE", 1)
    local_rank = _environment("LOCAL_RANK", 0)
    device = find_device(config, local_rank)
    if config.engine == "single" and world_size > 1:
        raise ConfigError(f"engine single is for one process, but {world_size} were started")
    control = store = None
    if config.engine != "single":
        control, store = _start_groups(config, device, rank, world_size)
    hostname = socket.gethostname()
    facts: list[Any] = [None] * world_size
    server: Listener | Address | None = None
    if config.engine == "async_sgd" and rank == 0 and world_size > 1:
        server = Listener(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    address = server.address.to_json() if isinstance(server, Listener) else ""
    own = (hostname, os.environ.get("GROUP_RANK", ""), own_group(config, rank, hostname), address)
    if control is None:
        facts = [own]
    else:
        dist.all_gather_object(facts, own, group=control)
    if config.engine == "async_sgd":
        if control is not None:  # from here on no process waits for all others: any of them may be lost
            _leave(control, store, rank, world_size)
        if server is None and facts[0][3]:
            server = Address.from_json(facts[0][3])
        yield replace(_context(config, rank, local_rank, device, facts, None, None), server=server)
        return
    if control is not None and world_size > 1:
        check_exchange(device, rank, world_size)
    yield _context(config, rank, local_rank, device, facts, control, store)
    if control is not None:  # not after an exception: the others may be gone, and waiting for them would hang
        _leave(control, store, rank, world_size)


def check_exchange(device: torch.device, rank: int, world_size: int) -> None:
    """Refuse to train where the devices' own exchange gives wrong sums: broken peer access delivers zeros.

    Raises:
        TrainingError: the sum of the ranks' numbers is not what it must be.

    """
    values = torch.full((4096,), float(rank + 1), dtype=torch.float64, device=device)
    dist.all_reduce(values)
    expected = world_size * (world_size + 1) / 2
    wrong = int((values != expected).sum())
    if wrong:
        raise TrainingError(
            f"an exchange among {world_size} ranks gave {wrong} wrong sums of {values.numel()} on rank {rank}"
            f" ({values[values != expected][0].item():g} instead of {expected:g}): copies between devices are broken;"
            " try NCCL_P2P_DISABLE=1, and look at the driver's release notes"
        )


def _leave(control: Any, store: Any, rank: int, world_size: int) -> None:
    dist.barrier(group=control)
    _meet_in_store(store, rank, world_size)
    dist.destroy_process_group()


def newcomer(config: TrainConfig, path: Path) -> Context:
    """Return the context of a process that joins a run under way, whose server wrote ``path`` (server.json).

    Raises:
        TrainingError: the file cannot be read.

    """
    try:
        address = Address.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as problem:
        raise TrainingError(
            f"--join: {path} cannot be read: {getattr(problem, 'strerror', None) or problem};"
            " the server writes server.json into its run directory and removes it at its end"
        ) from None
    local_rank = _environment("LOCAL_RANK", 0)
    facts = [(socket.gethostname(), "", 0, "")]
    alone = _context(config, 0, local_rank, find_device(config, local_rank), facts, None, None)
    return replace(alone, server=address)


def leave() -> None:
    """Close the group that a framework opened and left open: its threads abort a process that ends with them."""
    if dist.is_initialized():
        dist.barrier()
        store = distributed_c10d._get_default_store()  # noqa: SLF001
        _meet_in_store(store, dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()


def _meet_in_store(store: Any, rank: int, world_size: int) -> None:
    """Wait until every rank is past its last collective: gloo aborts a rank whose peer closes while it still reads."""
    try:
        store.set(f"past-{rank}", "1")
        store.wait([f"past-{other}" for other in range(world_size)], timedelta(seconds=LEAVE_SECONDS))
    except (RuntimeError, ValueError):
        return  # the store's host has gone: then it was past its own last collective, and so are all


def _context(
    config: TrainConfig, rank: int, local_rank: int, device: torch.device, facts: list[Any], control: Any, store: Any
) -> Context:
    ranks_per_node = int(config.settings.get("ranks_per_node", 0))
    if ranks_per_node:
        nodes = [r // ranks_per_node for r in range(len(facts))]
    else:
        names = [fact[:2] for fact in facts]
        nodes = [names.index(name) for name in names]
    groups = [fact[2] for fact in facts]
    return Context(
        rank=rank,
        local_rank=local_rank,
        world_size=len(facts),
        device=device,
        node_of_rank=tuple(nodes),
        group_of_rank=tuple(groups),
        batch_of_rank=tuple(config.groups[g].batch_per_device for g in groups),
        micro_batches=config.groups[groups[rank]].gradient_accumulation_steps,
        ranks_per_sample=config.tensor_parallel_degree,
        control=control,
        store=store,
    )
