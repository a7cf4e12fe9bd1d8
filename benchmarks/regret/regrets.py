"""Regret from the two tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.regret import records
from benchmarks.regret.clusters import CASES, Case
from benchmarks.regret.measuring import TIMES_THE_BEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the runs of one choice came to."""

    label: str
    strategy: str
    roles: tuple[str, ...]
    seconds: tuple[float, ...]
    """Of runs that reached the loss; empty when none did."""
    steps: float | None
    step_seconds: float
    predicted_step_seconds: float
    predicted_extra: float
    """Further steps as a fraction."""
    failed: bool

    @property
    def median(self) -> float | None:
        """Median time to the loss."""
        return statistics.median(self.seconds) if self.seconds else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One model on one cluster."""

    case: Case
    task: str
    measured: tuple[Measured, ...]

    @property
    def best(self) -> Measured:
        """The choice with the least median time."""
        return min((m for m in self.measured if m.median is not None), key=lambda m: m.median or math.inf)

    def of(self, role: str) -> Measured | None:
        """Return the choice with a role."""
        return next((m for m in self.measured if role in m.roles), None)

    def regret(self, role: str) -> float | None:
        """Return how much longer than the best it took, as a fraction; where it was ended, how much it was at least."""
        found = self.of(role)
        if found is None or found.failed:
            return None
        if found.median is None:
            return TIMES_THE_BEST - 1
        return found.median / (self.best.median or math.nan) - 1

    def ended(self, role: str) -> bool:
        """Whether a run of it was ended before the loss was reached."""
        found = self.of(role)
        return found is not None and found.median is None

    @property
    def spread(self) -> float | None:
        """Median over choices of (longest - shortest) / median of their runs; None where nothing was repeated."""
        found = [
            (max(m.seconds) - min(m.seconds)) / statistics.median(m.seconds) for m in self.measured if m.seconds[1:]
        ]
        return statistics.median(found) if found else None

    @property
    def exact_steps(self) -> float | None:
        """Steps that exact methods need."""
        found = [m.steps for m in self.measured if m.strategy in ("single", "ddp", "uneven_ddp") and m.steps]
        return statistics.median(found) if found else None

    def cause(self) -> str:
        """Say which of the two predictions, steps or time of a step, misled the choice more."""
        chosen, best = self.of("recommended"), self.best
        if chosen is None or chosen is best or chosen.steps is None or best.steps is None:
            return ""
        steps = math.log(chosen.steps / best.steps) - math.log(
            (1 + chosen.predicted_extra) / (1 + best.predicted_extra)
        )
        times = math.log(chosen.step_seconds / best.step_seconds) - math.log(
            chosen.predicted_step_seconds / best.predicted_step_seconds
        )
        predicted = (1 + chosen.predicted_extra) * chosen.predicted_step_seconds
        predicted /= (1 + best.predicted_extra) * best.predicted_step_seconds
        if predicted > 1:
            return f"rule: {best.label} was predicted {1 - 1 / predicted:.0%} faster and not taken"
        what = "number of steps" if steps > times else "time of a step"
        return f"{what}: against {best.label} it needs {math.exp(max(steps, times)) - 1:.0%} more than was predicted"


def results(tables: Path) -> list[Result]:
    """Return a result for every model and cluster of which the recommendation and another choice were run."""
    runs, choices = records.read(tables / "runs.csv"), records.read(tables / "choices.csv")
    found = []
    for case in CASES:
        for task in dict.fromkeys(c["task"] for c in choices if c["cluster"] == case.name):
            mine = [c for c in choices if (c["cluster"], c["task"]) == (case.name, task)]
            measured = tuple(m for m in (_measured(c, runs) for c in mine) if m is not None)
            result = Result(case=case, task=task, measured=measured)
            finished = [m for m in measured if m.median is not None]
            if result.of("recommended") is not None and len(measured) > 1 and finished:
                found.append(result)
    return found


def _measured(choice: dict[str, str], runs: Iterable[dict[str, str]]) -> Measured | None:
    own = [r for r in runs if all(r[k] == choice[k] for k in ("cluster", "task", "key"))]
    if not own:
        return None
    reached = [r for r in own if r["seconds"]]
    counted = reached or own
    return Measured(
        label=choice["label"],
        strategy=choice["strategy"],
        roles=tuple(choice["roles"].split()),
        seconds=tuple(float(r["seconds"]) for r in reached),
        steps=statistics.median(float(r["steps"]) for r in reached) if reached else None,
        step_seconds=statistics.median(float(r["step_seconds"]) for r in counted),
        predicted_step_seconds=float(choice["predicted_step_seconds"]),
        predicted_extra=float(choice["extra_steps"]),
        failed=not reached and all(r["reason"] == "failed" for r in own),
    )
