"""Nodes whose speed changes in phases that outlast a step: how long a step takes that waits for the slowest of them.

In lockstep a step takes, in every joint state of the nodes, as long as its slowest rank does in that state. Over a long
time as many steps are made as the mean over time of the steps a second: the mean step time is the harmonic one,
1 / sum of P(state) / max over ranks of T(state). Nodes change independently of each other, so the probability that no
rank is slower than t is the product over nodes of the share of time in which theirs is not: any number of nodes costs
no more than the few times there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

Levels = tuple[tuple[float, float], ...]
"""(share of the time, speed over the mean speed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The ranks of one node class."""

    num_nodes: int
    changing_seconds: float
    """Of a step at the mean speed: what takes longer where the node is slower."""
    constant_seconds: float
    """The rest: communication, waiting for data."""
    levels: Levels
    phase_seconds: float = math.inf
    """Mean time until the level changes."""


def averaged(levels: Levels, phase_seconds: float, span_seconds: float) -> Levels:
    """Return the levels of the mean over ``span_seconds``: phases that are shorter average out, as independent ones do.

    The standard deviation of a mean over n phases is 1 / sqrt(n) of theirs.
    """
    if span_seconds <= phase_seconds:
        return levels
    kept = math.sqrt(phase_seconds / span_seconds)
    return tuple((share, 1 + (speed - 1) * kept) for share, speed in levels)


def spread(levels: Levels) -> float:
    """Return the coefficient of variation that levels make."""
    return math.sqrt(sum(share * (speed - 1) ** 2 for share, speed in levels))


def within(variation: float, levels: Levels) -> float:
    """Return what is left of a coefficient of variation beside the levels: noise from step to step."""
    return math.sqrt(max(0.0, variation**2 - spread(levels) ** 2))


def expected_maximum(count: int) -> float:
    """Return the expected largest of ``count`` standard normal numbers, at least one (Blom's approximation, 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def lockstep_seconds(classes: Sequence[Waiting], span_steps: int = 1) -> float:
    """Return the mean time of a step that waits for every rank of all classes.

    Args:
        classes: their ranks; without levels a class takes the sum of its two times.
        span_steps: steps from one meeting to the next: that long a rank's own speed averages.

    """
    steps: list[list[tuple[float, float, int]]] = []
    for one in classes:
        step = one.changing_seconds + one.constant_seconds
        levels = averaged(one.levels, one.phase_seconds, step * span_steps) if one.levels else ((1.0, 1.0),)
        steps.append(
            [(one.changing_seconds / speed + one.constant_seconds, share, one.num_nodes) for share, speed in levels]
        )
    rate, before = 0.0, 0.0
    for seconds in sorted({t for times in steps for t, _, _ in times}):
        none_slower = 1.0
        for times in steps:
            none_slower *= min(1.0, sum(share for t, share, _ in times if t <= seconds)) ** times[0][2]
        if none_slower > before:
            if seconds <= 0:
                return 0.0
            rate += (none_slower - before) / seconds
        before = none_slower
    return before / rate
