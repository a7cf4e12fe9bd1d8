"""How many loader workers a rank needs, may have, and should try, from what loading and computing were seen to take."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from typing import Any

import torch

MEASURED_SECONDS = 0.3
MEASURED_SAMPLES = 64
IGNORED_SHARE = 0.02
"""Loading in the training process itself is fine up to this share of a step."""
STORAGE_SHARE = 0.5
"""Loading that uses a processor for less than this share of its time waits for storage."""
BATCHES_AHEAD = 2
"""Of each worker (DataLoader's prefetch_factor)."""
WORKER_BYTES = 64 << 20
"""A forked worker shares the pages of its parent; what it writes to was 20 to 60 MB in tests on Linux."""
ROOM_SHARE = 0.5
"""Share of what is free that buffers may take."""
WAITING_WORKERS = 4
"""Workers that wait for storage need no processor of their own: this many share one."""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """What one sample takes, measured in the training process."""

    seconds: float
    processor_seconds: float
    """Of them running, or waiting for a processor."""
    num_bytes: float

    @property
    def bound(self) -> str:
        """Return what limits it: "storage" or "processor"."""
        return "storage" if self.processor_seconds < STORAGE_SHARE * self.seconds else "processor"


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a rank may take, in its share of the node; None where it is not known."""

    cores: int
    shared_memory_bytes: float | None
    memory_bytes: float | None


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Loader workers of a rank, and why."""

    workers: int
    reason: str


def measure(dataset: Any, num_samples: int, seed: int) -> Loading:
    """Load samples from all over the dataset for a moment and return their means."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randint(num_samples, (MEASURED_SAMPLES,), generator=draw).tolist()
    wall, processor, size, count = time.perf_counter(), _processor_seconds(), 0, 0
    for index in order:
        size += _bytes(dataset[index])
        count += 1
        if time.perf_counter() - wall > MEASURED_SECONDS:
            break
    return Loading(
        seconds=(time.perf_counter() - wall) / count,
        processor_seconds=(_processor_seconds() - processor) / count,
        num_bytes=size / count,
    )


def _processor_seconds() -> float:
    """Return the time that this thread has run or wanted to: waiting for a processor is not waiting for storage."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as stream:
            queued = int(stream.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        queued = 0.0
    return time.thread_time() + queued


def _bytes(item: Any) -> int:
    if torch.is_tensor(item):
        return item.numel() * item.element_size()
    if isinstance(item, (tuple, list)):
        return sum(_bytes(part) for part in item)
    return sum(_bytes(part) for part in item.values()) if isinstance(item, dict) else 64


def room(ranks_on_node: int) -> Room:
    """Return this rank's share of the node's processors, shared memory and memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return Room(
        cores=max(0, usable // ranks_on_node - 1),
        shared_memory_bytes=_share(_free_shared_memory(), ranks_on_node),
        memory_bytes=_share(_free_memory(), ranks_on_node),
    )


def _share(size: float | None, ranks: int) -> float | None:
    return None if size is None else ROOM_SHARE * size / ranks


def _free_shared_memory() -> float | None:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108  # asked for its size only
    except OSError:
        return None
    return float(found.f_bavail * found.f_frsize)


def _free_memory() -> float | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            line = next(line for line in stream if line.startswith("MemAvailable:"))
        return float(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def needed_workers(loading: Loading, samples_per_step: int, compute_seconds: float) -> int:
    """Return the workers that load as fast as the rank computes; 0 where loading in between costs next to nothing."""
    seconds = loading.seconds * samples_per_step
    if seconds <= IGNORED_SHARE * compute_seconds:
        return 0
    return max(1, math.ceil(seconds / max(compute_seconds, 1e-9)))


def allowed_workers(loading: Loading, where: Room, micro_batch: int) -> tuple[int, str]:
    """Return the most workers that fit, and what limits them."""
    batch_bytes = max(1.0, BATCHES_AHEAD * micro_batch * loading.num_bytes)
    limits = [(where.cores * (WAITING_WORKERS if loading.bound == "storage" else 1), "processors")]
    if where.shared_memory_bytes is not None:
        limits.append((int(where.shared_memory_bytes / batch_bytes), "shared memory (/dev/shm)"))
    if where.memory_bytes is not None:
        limits.append((int(where.memory_bytes / (batch_bytes + WORKER_BYTES)), "memory"))
    return min(limits, key=lambda limit: limit[0])


def advise(
    loading: Loading, where: Room, *, samples_per_step: int, micro_batch: int, compute_seconds: float, now: int
) -> Advice:
    """Return the workers to take instead of ``now``, and the sentence that says why."""
    wanted = needed_workers(loading, samples_per_step, compute_seconds)
    most, limit = allowed_workers(loading, where, micro_batch)
    what = (
        f"a sample takes {1e3 * loading.seconds:.3g} ms to load ({loading.bound}-bound),"
        f" {samples_per_step} of them {loading.seconds * samples_per_step / max(compute_seconds, 1e-9):.0%} of a step"
    )
    if wanted > most:
        return Advice(workers=most, reason=f"{what}: {wanted} loader workers are needed, {limit} allow {most}")
    if wanted == 0 and now == 0:
        return Advice(workers=0, reason=f"{what}: no loader workers are needed")
    return Advice(workers=wanted, reason=f"{what}: {wanted} loader workers, {now} now")
