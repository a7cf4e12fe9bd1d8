"""Open a device through torch and time work on it. CUDA and ROCm share one interface in torch (``torch.cuda``)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from stratadvisor.probe.outcome import UnsupportedHereError

Clock = Callable[[], float]
SHARE_SECONDS = 0.5
"""Five of the usual periods of a quota (100 ms)."""
WHOLE_SHARE = 0.9


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


def seconds_of(
    device: torch.device, work: Callable[[], object], times: int = 1, clock: Clock = time.perf_counter
) -> float:
    """Return the time of one ``work`` by ``clock``, averaged over ``times`` runs in a row."""
    wait(device)
    begin = clock()
    for _ in range(times):
        work()
    wait(device)
    return max((clock() - begin) / times, 1e-9)


def processor_share(device: torch.device, work: Callable[[], object], budget_seconds: float = SHARE_SECONDS) -> float:
    """Return the share of the time in which this thread has a processor while all it does is ``work``.

    A container's quota or a busy machine takes processors away for tens of milliseconds at a time, which the fastest of
    several short timings never shows and every longer piece of work does. 1 for a GPU, and where next to nothing is
    taken: then there is no need to tell waiting from working.
    """
    if device.type != "cpu":
        return 1.0
    begin, used = time.perf_counter(), time.thread_time()
    while time.perf_counter() - begin < budget_seconds:
        work()
    share = (time.thread_time() - used) / (time.perf_counter() - begin)
    return max(share, 1e-3) if share < WHOLE_SHARE else 1.0


def clock_for(share: float) -> Clock:
    """Return the clock whose timings, divided by a processor share, are those of sustained work."""
    return time.perf_counter if share == 1.0 else time.thread_time


def samples(
    device: torch.device,
    work: Callable[[], object],
    budget_seconds: float,
    *,
    sample_seconds: float = 0.0,
    most: int = 10,
    clock: Clock = time.perf_counter,
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
        taken.append(seconds_of(device, work, times, clock))
    return taken
