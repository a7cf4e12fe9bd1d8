"""What one measured run of the same device and framework would make of the errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from stratadvisor.backtest.groups import group_of
from stratadvisor.backtest.score import Outcome
from stratadvisor.costs.constants import SPAN_CALIBRATED

_PLACE = ("gpu", "framework", "source")


@dataclass(frozen=True, slots=True)
class CalibratedScore:
    """Errors of the other runs when one run of a device, framework and source sets the scale.

    Every run of a group is tried as the one that sets it, so nothing depends on which was measured first.
    """

    count: int
    typical: float
    """MAPE with the middle one of the runs that could set the scale, weighted by the size of the groups."""
    mean: float
    """MAPE averaged over all of them: one odd run spoils every prediction that it scales."""
    coverage: float
    """Share of measurements inside the calibrated band, with the middle ones."""


def calibrated(outcomes: Iterable[Outcome]) -> CalibratedScore | None:
    """Return the errors after calibration, None where no group has two runs."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(group_of(outcome.row, _PLACE), []).append(outcome)
    found = [(len(members), *_tried([1.0 + o.error for o in members])) for members in groups.values() if members[1:]]
    total = sum(n for n, *_ in found)
    if total == 0:
        return None
    return CalibratedScore(
        count=total,
        typical=sum(n * typical for n, typical, _, _ in found) / total,
        mean=sum(n * mean for n, _, mean, _ in found) / total,
        coverage=sum(n * inside for n, _, _, inside in found) / total,
    )


def _tried(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return (median, mean) over the calibrating runs of the others' MAPE, and the median share inside the band."""
    width = 1.0 + SPAN_CALIBRATED
    errors: list[float] = []
    inside: list[float] = []
    for i, scale in enumerate(ratios):
        others = [own / scale for j, own in enumerate(ratios) if j != i]
        errors.append(sum(abs(r - 1.0) for r in others) / len(others))
        inside.append(sum(1 / width <= r <= width for r in others) / len(others))
    return median(errors), sum(errors) / len(errors), median(inside)
