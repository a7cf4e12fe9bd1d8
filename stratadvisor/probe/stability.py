"""How fast a device is over time: one product after another for some seconds, and the work done in each piece of time.

A device that others use too, that throttles, or whose virtual processor is taken away shows here. Pieces have the
length of a short training step: what is taken for shorter averages out within one. What lasts longer than a step makes
every rank wait that trains with it, and is told as levels: slow for this share of the time, fast for the rest. The mean
over the whole time is what the device gives; a faster product timed in a lucky moment is not.
"""

from __future__ import annotations

import itertools
import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence

import torch

from stratadvisor.probe.found import Levels, Steadiness
from stratadvisor.probe.torch_clock import open_device, seconds_of, wait

_PIECE_SECONDS, _QUICK_PIECE_SECONDS = 0.2, 0.1
"""Multiples of the usual period of a quota (100 ms): each has as many of its pauses."""
_LEAST_PIECES = 3
_PRODUCTS_PER_PIECE = 4
CPU_EDGE, GPU_EDGE = 384, 4096

LEVEL_PIECES = 10
"""Fewer do not tell two speeds from noise."""
LEVEL_DROP = 0.75
"""The slow speed must be below this part of the fast one: less is told by the variation."""
LEVEL_SIGNS = ((0.8, 0.75), (0.65, 0.55))
"""What tells two speeds from noise, either the first pair or the second. How much of the variance of the pieces the cut
explains: that of normal noise explains 0.64 (2 / pi), of even noise 0.75. And changes across the cut against those of
pieces that know nothing of each other: phases last longer."""
LEVEL_LEAST_SHARE = 0.06
VARYING = 0.2
"""From this coefficient of variation on a speed without two levels is told by its quarters: normal noise does not vary
like this, and what does is not normal."""
QUARTERS = 4


def variation(values: Sequence[float]) -> float:
    """Return the coefficient of variation of at least two values."""
    return statistics.stdev(values) / statistics.fmean(values)


def speeds(ends: Sequence[float], piece_seconds: float) -> list[float]:
    """Return the pieces of work done in each whole piece of time.

    Args:
        ends: when the work began, and when each piece of it was done; rising.
        piece_seconds: length of a piece of time.

    """
    count = int((ends[-1] - ends[0]) / piece_seconds * (1 + 1e-9))
    done = [_done(ends, ends[0] + i * piece_seconds) for i in range(count + 1)]
    return [after - before for before, after in itertools.pairwise(done)]


def _done(ends: Sequence[float], at: float) -> float:
    """Return the work done until ``at``, with a part for what was under way."""
    last = min(bisect_left(ends, at), len(ends) - 1)
    if last == 0:
        return 0.0
    return last - 1 + min(1.0, (at - ends[last - 1]) / (ends[last] - ends[last - 1]))


def levels(work: Sequence[float], piece_seconds: float) -> Levels | None:
    """Return the speeds between which a device changes: two, or, where it varies much without two, four quarters.

    None when it keeps one speed.
    """
    if len(work) < LEVEL_PIECES:
        return None
    found = _two(work, piece_seconds)
    if found is None and variation(work) >= VARYING:
        return _quarters(work, piece_seconds)
    return found


def _two(work: Sequence[float], piece_seconds: float) -> Levels | None:
    mean, cut = statistics.fmean(work), _cut(work)
    low = [value for value in work if value < cut]
    high = [value for value in work if value >= cut]
    if not low or min(len(low), len(high)) < max(2, LEVEL_LEAST_SHARE * len(work)):
        return None
    share, below, above = len(low) / len(work), statistics.fmean(low), statistics.fmean(high)
    explained = share * (1 - share) * (above - below) ** 2 / statistics.pvariance(work)
    changes = _changes(work, cut)
    by_chance = 2 * share * (1 - share) * (len(work) - 1)
    told = any(explained >= least and changes <= most * by_chance for least, most in LEVEL_SIGNS)
    if below > LEVEL_DROP * above or not told:
        return None
    return Levels(
        speeds=((share, below / mean), (1 - share, above / mean)),
        phase_seconds=(len(work) - 1) * piece_seconds / changes,
    )


def _quarters(work: Sequence[float], piece_seconds: float) -> Levels:
    ordered, mean = sorted(work), statistics.fmean(work)
    edges = [round(i * len(ordered) / QUARTERS) for i in range(QUARTERS + 1)]
    parts = [ordered[first:end] for first, end in itertools.pairwise(edges)]
    changes = max(1, _changes(work, ordered[len(ordered) // 2]))
    return Levels(
        speeds=tuple((len(part) / len(work), max(1e-3, statistics.fmean(part) / mean)) for part in parts),
        phase_seconds=(len(work) - 1) * piece_seconds / changes,
    )


def _changes(work: Sequence[float], cut: float) -> int:
    return sum((one < cut) != (other < cut) for one, other in itertools.pairwise(work))


def _cut(work: Sequence[float]) -> float:
    """Return the least value of the upper part when the values are cut in two with the least variance within."""
    ordered = sorted(work)
    total, count = sum(ordered), len(ordered)
    best, cut, below = -1.0, ordered[0], 0.0
    for i in range(1, count):
        below += ordered[i - 1]
        apart = below / i - (total - below) / (count - i)
        between = i * (count - i) * apart * apart
        if between > best and ordered[i] > ordered[i - 1]:
            best, cut = between, ordered[i]
    return cut


def measure(device: str, threads: int, budget_seconds: float = 6.0, quick: bool = False) -> Steadiness:
    """Watch ``cpu`` or ``cuda:N`` for ``budget_seconds``."""
    target = open_device(device, threads)
    edge = GPU_EDGE if target.type == "cuda" else CPU_EDGE
    left, right = torch.randn(edge, edge, device=target), torch.randn(edge, edge, device=target)
    out = torch.empty_like(left)

    def work() -> None:
        torch.mm(left, right, out=out)

    seconds_of(target, work)
    one = min(seconds_of(target, work) for _ in range(3))
    piece = max(_QUICK_PIECE_SECONDS if quick else _PIECE_SECONDS, _PRODUCTS_PER_PIECE * one)
    wait(target)
    used = time.thread_time()
    ends = [time.perf_counter()]
    end = ends[0] + max(budget_seconds, _LEAST_PIECES * piece)
    while ends[-1] < end:
        work()
        wait(target)
        ends.append(time.perf_counter())
    used = time.thread_time() - used
    passed = ends[-1] - ends[0]
    done = speeds(ends, piece)
    return Steadiness(
        variation=variation(done),
        num_pieces=len(done),
        piece_seconds=piece,
        flops_per_second=2.0 * edge**3 * (len(ends) - 1) / passed,
        edge=edge,
        processor_share=1.0 if target.type == "cuda" else min(1.0, max(1e-3, used / passed)),
        levels=levels(done, piece),
    )
