"""Errors of predictions against measurements, per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from stratadvisor.backtest.express import Expressed, express
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.truth import measured_step_seconds
from stratadvisor.costs.step import estimate_step
from stratadvisor.schema.layout import TimeEstimate


class Compared(Protocol):
    """A prediction beside a measurement."""

    @property
    def error(self) -> float:
        """Predicted over measured, minus one."""

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted band."""

    @property
    def band(self) -> float:
        """High over low."""


Kind = TypeVar("Kind", bound=Compared)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, predicted and measured."""

    run: Expressed
    estimate: TimeEstimate
    measured_seconds: float

    @property
    def row(self) -> Row:
        """The run as stated."""
        return self.run.row

    @property
    def error(self) -> float:
        """Predicted over measured, minus one: positive when the prediction is too slow."""
        return self.estimate.step_seconds.likely / self.measured_seconds - 1.0

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted band."""
        span = self.estimate.step_seconds
        return span.low <= self.measured_seconds <= span.high

    @property
    def band(self) -> float:
        """High over low."""
        return self.estimate.step_seconds.high / self.estimate.step_seconds.low


@dataclass(frozen=True, slots=True)
class Skipped:
    """One run that could not be predicted, and why."""

    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of a group of runs. Fractions, not percents."""

    group: str
    count: int
    mean_absolute: float
    median_absolute: float
    bias: float
    """Mean signed error."""
    worst: float
    """The largest error by size, with its sign."""
    coverage: float
    """Share of measurements inside the predicted 90 % band."""
    band: float
    """Mean of high over low."""


def predict(row: Row) -> Outcome | Skipped:
    """Return a run's prediction beside its measurement, or why there is none."""
    run = express(row)
    if isinstance(run, str):
        return Skipped(row, run)
    measured = measured_step_seconds(row, run.sequences, run.layout.world_size)
    if measured is None:
        return Skipped(row, "no measured step time or rate that can be converted")
    found = estimate_step(
        run.shape, run.layout, run.cluster, run.work, compression=run.compression, strategy=row.text("strategy")
    )
    return Outcome(run, found, measured)


def score(group: str, outcomes: Sequence[Compared]) -> Score:
    """Return the errors of a group that has at least one run."""
    errors = [o.error for o in outcomes]
    return Score(
        group=group,
        count=len(errors),
        mean_absolute=math.fsum(abs(e) for e in errors) / len(errors),
        median_absolute=median(abs(e) for e in errors),
        bias=math.fsum(errors) / len(errors),
        worst=max(errors, key=abs),
        coverage=sum(o.inside for o in outcomes) / len(errors),
        band=math.fsum(o.band for o in outcomes) / len(errors),
    )


def by_group(outcomes: Iterable[Kind], key: Callable[[Kind], str]) -> tuple[Score, ...]:
    """Return one score per group, in order of first appearance."""
    groups: dict[str, list[Kind]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return tuple(score(name, members) for name, members in groups.items())


def by_source(outcome: Outcome) -> str:
    """Return the group of a run: its source."""
    return outcome.run.row.source
