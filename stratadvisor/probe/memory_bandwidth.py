"""Memory bandwidth by triad, a = b + s*c: three arrays moved (STREAM's counting, McCalpin 1995).

The arrays are far larger than the caches. The CPU branch runs in every test; the accelerator branch has not been run
on a GPU.
"""

from __future__ import annotations

from pathlib import Path

import torch

from stratadvisor.probe.found import MemoryRate
from stratadvisor.probe.torch_clock import clock_for, open_device, processor_share, samples

_MIB = 1024**2
_LEAST_BYTES, _MOST_BYTES = 64 * _MIB, 512 * _MIB
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def last_level_cache_bytes(root: Path = _CACHES) -> int:
    """Return the size of CPU 0's largest cache; 0 when sysfs does not tell."""
    return max((_size_in(file) for file in root.glob("index*/size")), default=0)


def _size_in(file: Path) -> int:
    """Return the bytes that ``32768K`` stands for; 0 when it cannot be read."""
    try:
        text = file.read_text().strip()
        return int(text.rstrip("KM")) * {"K": 1024, "M": _MIB}.get(text[-1:], 1)
    except (OSError, ValueError):
        return 0


def array_bytes_for(cache_bytes: int, memory_bytes: float | None) -> int:
    """Return the size of one array: four times the cache (STREAM's rule), at most a 20th of the memory."""
    wanted = min(max(_LEAST_BYTES, 4 * cache_bytes), _MOST_BYTES)
    if memory_bytes is not None:
        wanted = min(wanted, int(memory_bytes / 20))
    return max(wanted // 4096 * 4096, 4096)


def measure(
    device: str,
    threads: int,
    memory_bytes: float | None = None,
    budget_seconds: float = 1.0,
    quick: bool = False,
) -> MemoryRate:
    """Measure on ``cpu`` or ``cuda:N``; ``memory_bytes`` is what is free there."""
    target = open_device(device, threads)
    cache_bytes = last_level_cache_bytes() if target.type == "cpu" else 128 * _MIB
    size = array_bytes_for(cache_bytes, memory_bytes)
    if quick:
        size = min(size, _LEAST_BYTES)
    first = torch.ones(size // 4, device=target)
    second = torch.ones(size // 4, device=target)
    result = torch.zeros(size // 4, device=target)

    def triad() -> None:
        torch.add(first, second, alpha=1.5, out=result)

    share = processor_share(target, triad)
    taken = samples(
        target,
        triad,
        budget_seconds,
        sample_seconds=0.02 if target.type == "cuda" else 0.0,
        most=20,
        clock=clock_for(share),
    )
    return MemoryRate(
        bytes_per_second=3.0 * size * share / min(taken),
        array_bytes=size,
        num_samples=len(taken),
        processor_share=share,
    )
