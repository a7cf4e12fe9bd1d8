"""How many more steps an inexact method needs to the same loss. Rough by nature; each answer names its source."""

from __future__ import annotations

import math

EXACT_KINDS = frozenset({"synchronous", "single"})
SHORT_INTERVAL_STEPS = 8
SHORT_INTERVAL_PENALTY = 0.05
LONG_INTERVAL_STEPS = 500
LONG_INTERVAL_PENALTY = 0.10
STALENESS_PENALTY = 0.15
"""Per doubling of one more than the mean staleness in steps, with delay compensation. On CIFAR-10 8 workers end 0 to
5 % higher in error than sequential training with it and 19 % without (arXiv:1609.08326, table 1), which more steps do
not always make good; AdamW took 15 to 25 % more steps at one stale step and 52 % at three (docs/regret.md)."""
REPLICA_PENALTY = 0.125
"""Per doubling of replicas beyond 2. At 2.4B parameters 8 replicas end about 1.2 % higher in loss than data parallelism
with the same tokens, and smaller models lose more (arXiv:2503.09799). There the law of arXiv:2203.15556 gives 0.12 nats
for a factor e of tokens (411 / 48e9**0.28 * 0.28), so that 0.028 nats cost a quarter more tokens: 12.5 % a doubling.
Beyond 8 replicas this is an extrapolation."""
MAX_PENALTY = 2.0


def extra_steps_fraction(
    kind: str,
    *,
    sync_interval_steps: int = 1,
    staleness: float = 0.0,
    num_workers: int = 1,
    delay_steps: int = 0,
) -> tuple[float, str]:
    """Return the further steps as a fraction (0.05: 5 % more), and a sentence with the source.

    Args:
        kind: synchronous or single (exact), hierarchical, local_sgd or asynchronous.
        sync_interval_steps: local steps between exchanges.
        staleness: mean delay of a gradient in steps; n busy workers have n - 1.
        num_workers: replicas that drift apart.
        delay_steps: age of an exchange when it is applied. Replicas then are as far apart as the steps of interval and
            delay together make them (runtime/hierarchical.py), so the delay counts as a longer interval.

    Raises:
        ValueError: an unknown kind.

    """
    if kind in EXACT_KINDS or num_workers < 2:
        return 0.0, ""
    if kind in ("hierarchical", "local_sgd"):
        extra = _interval_penalty(sync_interval_steps + delay_steps)
        if extra == 0.0:
            return 0.0, ""
        extra += REPLICA_PENALTY * max(0.0, math.log2(num_workers / 2))
        late = f", {delay_steps} steps late," if delay_steps else ""
        note = (
            f"{num_workers} replicas that meet every {sync_interval_steps} steps{late} are taken to need {extra:.0%}"
            " more steps (our reading of arXiv:2311.08105 and arXiv:2503.09799; measure it on your task)"
        )
        return min(MAX_PENALTY, extra), note
    if kind == "asynchronous":
        extra = min(MAX_PENALTY, STALENESS_PENALTY * math.log2(1 + staleness) + _interval_penalty(sync_interval_steps))
        note = (
            f"gradients {staleness:.3g} steps old are taken to need {extra:.0%} more steps with delay compensation"
            " (our reading of arXiv:1609.08326 and of runs in the lab; measure it on your task)"
        )
        return extra, note
    raise ValueError(f"unknown kind of convergence {kind!r}")


def _interval_penalty(interval: int) -> float:
    """Return 0 at every step, 5 % at 8 steps, 10 % at 500, logarithmic between and beyond."""
    if interval <= 1:
        return 0.0
    if interval <= SHORT_INTERVAL_STEPS:
        return SHORT_INTERVAL_PENALTY * math.log(interval) / math.log(SHORT_INTERVAL_STEPS)
    span = math.log(LONG_INTERVAL_STEPS / SHORT_INTERVAL_STEPS)
    rise = LONG_INTERVAL_PENALTY - SHORT_INTERVAL_PENALTY
    return SHORT_INTERVAL_PENALTY + rise * math.log(interval / SHORT_INTERVAL_STEPS) / span
