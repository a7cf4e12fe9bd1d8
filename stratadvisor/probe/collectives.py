"""All-reduce times over message sizes among the ranks of a node (gloo on CPUs, NCCL or RCCL on accelerators).

Every rank calls ``measure``; they meet through a file, so no port has to be free. Each decision that depends on time
(how often to repeat, when to stop) is taken on the maximum over ranks, so that all ranks take the same one. The
accelerator branch was written against torch's documentation and has not been run on GPUs.
"""

from __future__ import annotations

import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from stratadvisor.probe.found import SweepTimes
from stratadvisor.probe.outcome import UnsupportedHereError
from stratadvisor.probe.torch_clock import open_device, wait

CPU_MESSAGE_BYTES = (1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2, 16 * 1024**2, 64 * 1024**2)
GPU_MESSAGE_BYTES = (*CPU_MESSAGE_BYTES, 256 * 1024**2, 1024**3)
QUICK_MESSAGE_BYTES = (1024, 64 * 1024, 1024**2)
_PASSES = 3
_MOST_PER_PASS = 20


def _maximum(values: list[float], device: torch.device) -> list[float]:
    """Return the elementwise maximum over ranks."""
    tensor = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def _repeat(message: torch.Tensor, times: int, device: torch.device) -> list[float]:
    taken: list[float] = []
    for _ in range(times):
        dist.barrier()
        wait(device)
        begin = time.perf_counter()
        dist.all_reduce(message)
        wait(device)
        taken.append(max(time.perf_counter() - begin, 1e-9))
    return _maximum(taken, device)


def sweep(device: torch.device, sizes: tuple[int, ...], budget_seconds: float) -> SweepTimes:
    """Time all-reduces in the process group that is open, from small to large, within the budget.

    The sizes are gone through several times, so that what disturbs the machine for a moment touches a few timings of
    every size and not all timings of one.
    """
    messages: dict[int, torch.Tensor] = {}
    times: dict[int, int] = {}
    taken: dict[int, list[float]] = {}
    begin = time.perf_counter()
    share = budget_seconds / len(sizes) / _PASSES
    for size in sizes:
        messages[size] = torch.ones(size // 4, device=device) / dist.get_world_size()
        first = min(_repeat(messages[size], 2, device))
        times[size] = max(1, min(_MOST_PER_PASS, int(share / first)))
        taken[size] = _repeat(messages[size], times[size], device)
        used = _maximum([time.perf_counter() - begin], device)[0]
        # The next message is four times as large: a warm-up and as many runs as this one had, once more in every pass.
        if used + 4 * taken[size][0] * (2 + _PASSES) + used * (_PASSES - 1) > 2 * budget_seconds:
            break
    for _ in range(_PASSES - 1):
        for size in taken:
            taken[size] += _repeat(messages[size], times[size], device)
    return SweepTimes(
        backend=dist.get_backend(),
        world_size=dist.get_world_size(),
        points=tuple((size, statistics.median(seconds)) for size, seconds in taken.items()),
        repetitions=tuple(len(seconds) for seconds in taken.values()),
    )


def measure(
    *,
    device: str,
    threads: int,
    rank: int,
    world_size: int,
    store_file: str,
    limit_seconds: float,
    memory_bytes: float | None = None,
    budget_seconds: float = 3.5,
    quick: bool = False,
) -> SweepTimes:
    """Run the sweep as one of ``world_size`` ranks that share ``store_file``.

    Raises:
        UnsupportedHereError: there is one rank only, or torch lacks the backend.

    """
    if world_size < 2:
        raise UnsupportedHereError("one rank has nobody to exchange with")
    target = open_device(device, threads)
    backend = "nccl" if target.type == "cuda" else "gloo"
    available = dist.is_nccl_available() if backend == "nccl" else dist.is_gloo_available()
    if not available:
        raise UnsupportedHereError(f"this torch has no {backend}")
    sizes: tuple[int, ...] = (
        QUICK_MESSAGE_BYTES if quick else (GPU_MESSAGE_BYTES if backend == "nccl" else CPU_MESSAGE_BYTES)
    )
    if memory_bytes is not None:
        sizes = tuple(size for size in sizes if size * 4 <= memory_bytes) or sizes[:2]
    dist.init_process_group(
        backend,
        init_method=f"file://{store_file}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=limit_seconds),
    )
    try:
        return sweep(target, sizes, budget_seconds)
    finally:
        dist.destroy_process_group()
