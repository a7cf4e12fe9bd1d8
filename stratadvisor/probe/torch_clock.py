"""Open a device through torch and time work on it. CUDA and ROCm share one interface in torch (``torch.cuda``)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from stratadvisor.probe.outcome import UnsupportedHereError


def open_device(name: str, threads: int) -> torch.device:
    """Return ``cpu`` or ``cuda:N`` ready to use, with ``threads`` processor threads for torch.

    Raises:
        UnsupportedHereError: torch cannot use the accelerator.

    """
    torch.set_num_threads(max(1, threads))
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UnsupportedHereError("torch cannot use an accelerator here")
        torch.cuda.set_device(device)
    return device


def wait(device: torch.device) -> None:
    """Wait until the device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device: torch.device, work: Callable[[], object], times: int = 1) -> float:
    """Return the wall time of one ``work``, averaged over ``times`` runs in a row."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return max((time.perf_counter() - begin) / times, 1e-9)


def samples(
    device: torch.device,
    work: Callable[[], object],
    budget_seconds: float,
    *,
    sample_seconds: float = 0.0,
    most: int = 10,
) -> list[float]:
    """Return timings of ``work``: at least one after a warm-up, at most ``most``, for about ``budget_seconds``.

    ``sample_seconds`` is the least length of one timing; short work is run several times within it, so that the
    start of a kernel and the clock's grain do not count.
    """
    first = seconds_of(device, work)
    times = max(1, int(sample_seconds / first))
    end = time.perf_counter() + budget_seconds - first
    taken: list[float] = []
    while not taken or (len(taken) < most and time.perf_counter() < end):
        taken.append(seconds_of(device, work, times))
    return taken
