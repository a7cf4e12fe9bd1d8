"""How steady a device is: the same piece of work over and over for a few seconds, as the coefficient of variation.

A device that others use too, that throttles, or whose virtual CPU is taken away shows here.
"""

from __future__ import annotations

import statistics
import time

import torch

from stratadvisor.probe.found import Steadiness
from stratadvisor.probe.torch_clock import open_device, seconds_of

_PIECE_SECONDS = 0.1
"""Length of a piece: like a short training step; noise within a step averages out, noise between steps counts."""
_QUICK_PIECE_SECONDS = 0.02


def variation(seconds: list[float]) -> float:
    """Return the coefficient of variation of at least two timings."""
    return statistics.stdev(seconds) / statistics.fmean(seconds)


def measure(device: str, threads: int, budget_seconds: float = 2.5, quick: bool = False) -> Steadiness:
    """Repeat a matrix product on ``cpu`` or ``cuda:N``."""
    target = open_device(device, threads)
    edge = 4096 if target.type == "cuda" else 384
    left, right = torch.randn(edge, edge, device=target), torch.randn(edge, edge, device=target)
    out = torch.empty_like(left)

    def work() -> None:
        torch.mm(left, right, out=out)

    seconds_of(target, work)
    piece = _QUICK_PIECE_SECONDS if quick else _PIECE_SECONDS
    times = max(1, round(piece / min(seconds_of(target, work) for _ in range(3))))
    taken: list[float] = []
    end = time.perf_counter() + budget_seconds
    while len(taken) < 3 or time.perf_counter() < end:
        taken.append(seconds_of(target, work, times) * times)
    return Steadiness(variation=variation(taken), num_pieces=len(taken), piece_seconds=statistics.median(taken))
