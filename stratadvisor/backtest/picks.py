"""Pick quality: among measured layouts of one model on one cluster, how good is the one predicted fastest?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from stratadvisor.backtest.score import Outcome

_SAME = (
    "src_key",
    "model_name",
    "n_layers",
    "hidden",
    "seq_len",
    "gpu_model",
    "n_gpus",
    "precision",
    "global_batch_sequences",
)
"""Runs that agree in these compete with each other: the layout alone differs."""
_LAYOUT = ("strategy", "tp", "pp", "vpp", "cp", "micro_batch", "activation_ckpt", "offload")


@dataclass(frozen=True, slots=True)
class Picks:
    """How the choice among measured layouts went."""

    contests: int
    """Groups with at least two different layouts."""
    layouts: int
    """Runs in them."""
    best: int
    """How often the first choice was the fastest measured."""
    mean_loss: float
    """Mean of the chosen run's time over the fastest's, minus one."""
    median_loss: float
    worst_loss: float
    random_loss: float
    """The same mean for a choice by lot: what there was to win."""


def pick_quality(outcomes: Iterable[Outcome]) -> Picks | None:
    """Return the quality of the first choice, or None where nothing competes.

    Times are per sequence: where the global batch is not stated, layouts process different numbers of them.
    """
    contests: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        contests.setdefault(tuple(outcome.row.text(c) for c in _SAME), []).append(outcome)
    losses: list[float] = []
    by_lot: list[float] = []
    runs = 0
    for members in contests.values():
        if len({tuple(o.row.text(c) for c in _LAYOUT) for o in members}) < 2:
            continue
        measured = [o.measured_seconds / o.run.sequences for o in members]
        chosen = min(range(len(members)), key=lambda i: _predicted(members[i]))
        fastest = min(measured)
        losses.append(measured[chosen] / fastest - 1.0)
        by_lot.append(sum(measured) / len(measured) / fastest - 1.0)
        runs += len(members)
    if not losses:
        return None
    return Picks(
        contests=len(losses),
        layouts=runs,
        best=sum(loss == 0.0 for loss in losses),
        mean_loss=sum(losses) / len(losses),
        median_loss=median(losses),
        worst_loss=max(losses),
        random_loss=sum(by_lot) / len(by_lot),
    )


def _predicted(outcome: Outcome) -> float:
    return outcome.estimate.step_seconds.likely / outcome.run.sequences
