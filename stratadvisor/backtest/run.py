"""All rows of a file, each predicted as far as it can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from stratadvisor.backtest.calibrated import CalibratedScore, calibrated
from stratadvisor.backtest.groups import group_of
from stratadvisor.backtest.memory_score import MemoryOutcome, is_memory_row, predict_memory
from stratadvisor.backtest.picks import Picks, pick_quality
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.score import Outcome, Score, Skipped, by_group, predict, score

_TIMED = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu")
TOO_LOW = -0.03
"""A peak predicted this much below the truth may end in an out-of-memory error."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What became of the rows."""

    times: tuple[Outcome, ...]
    peaks: tuple[MemoryOutcome, ...]
    """Runs whose peak was measured, and those known to have run out of memory."""
    skipped: tuple[Skipped, ...]

    @property
    def measured_peaks(self) -> list[MemoryOutcome]:
        """Those with a figure."""
        return [p for p in self.peaks if p.measured_bytes is not None]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Fits or out of memory, foretold."""

    runs: int
    right: int
    out_of_memory: int
    out_of_memory_right: int
    too_low: float
    """Share of measured peaks that were predicted more than 3 % too low."""
    above_high: float
    """Share of measured peaks above the high end of the band, by which a plan is judged to fit."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The tables that are printed."""

    time: tuple[Score, ...]
    memory: tuple[Score, ...]
    """Per group; the last of each is ``all``."""
    calibrated: CalibratedScore | None
    picks: Picks | None
    verdicts: Verdicts | None
    skipped: tuple[tuple[str, int], ...]
    """Reason and number of rows, most frequent first."""


def predict_rows(rows: Iterable[Row]) -> Predicted:
    """Return every row's predictions, or why there are none."""
    times: list[Outcome] = []
    peaks: list[MemoryOutcome] = []
    skipped: list[Skipped] = []
    for row in rows:
        remembers = is_memory_row(row)
        if remembers:
            peak = predict_memory(row)
            if isinstance(peak, str):
                skipped.append(Skipped(row, peak))
            else:
                peaks.append(peak)
        if not remembers or any(row.number(c) for c in _TIMED):
            time = predict(row)
            if isinstance(time, Outcome):
                times.append(time)
            else:
                skipped.append(time)
    return Predicted(tuple(times), tuple(peaks), tuple(skipped))


def summarise(found: Predicted, names: tuple[str, ...]) -> Summary:
    """Return the errors per group and overall."""
    reasons = Counter(s.reason for s in found.skipped)
    measured = found.measured_peaks
    time = by_group(found.times, lambda o: group_of(o.row, names))
    memory = by_group(measured, lambda o: group_of(o.row, names))
    return Summary(
        time=(*time, score("all", found.times)) if found.times else (),
        memory=(*memory, score("all", measured)) if measured else (),
        calibrated=calibrated(found.times),
        picks=pick_quality(found.times),
        verdicts=verdicts(found.peaks),
        skipped=tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
    )


def verdicts(peaks: Iterable[MemoryOutcome]) -> Verdicts | None:
    """Return how often fits or out of memory was foretold; None without a run on a device of known memory."""
    known = list(peaks)
    judged = [p for p in known if p.verdict_right is not None]
    measured = [p for p in known if p.measured_bytes is not None]
    if not judged:
        return None
    lost = [p for p in judged if not p.fitted]
    return Verdicts(
        runs=len(judged),
        right=sum(p.verdict_right is True for p in judged),
        out_of_memory=len(lost),
        out_of_memory_right=sum(p.verdict_right is True for p in lost),
        too_low=sum(p.error < TOO_LOW for p in measured) / len(measured) if measured else 0.0,
        above_high=sum(p.above_high for p in measured) / len(measured) if measured else 0.0,
    )
