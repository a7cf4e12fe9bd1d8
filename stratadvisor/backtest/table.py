"""Every prediction beside its measurement, as CSV."""

from __future__ import annotations

import csv
import io

from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.run import Predicted

HEADER = (
    "line",
    "id",
    "source",
    "model_name",
    "gpu_model",
    "n_gpus",
    "strategy",
    "quantity",
    "measured",
    "predicted",
    "low",
    "high",
    "error",
    "inside_band",
    "reason",
)


def as_csv(found: Predicted) -> str:
    """Return one line for each prediction (seconds per step, or GiB), then the rows without one and why."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for o in found.times:
        span = o.estimate.step_seconds
        numbers = (o.measured_seconds, span.likely, span.low, span.high)
        writer.writerow((*_about(o.row), "step_seconds", *map(_short, numbers), _short(o.error), _yes(o.inside), ""))
    for p in found.peaks:
        gib = [_short(b / 2**30) for b in (p.predicted_bytes, p.low_bytes, p.high_bytes)]
        if p.measured_bytes is None:
            fits = p.verdict_right
            told = "" if fits is None else "out of memory foretold" if fits else "predicted to fit"
            writer.writerow((*_about(p.row), "peak_gib", "OOM", *gib, "", "", told))
        else:
            known = (_short(p.measured_bytes / 2**30), *gib, _short(p.error), _yes(p.inside), "")
            writer.writerow((*_about(p.row), "peak_gib", *known))
    for s in found.skipped:
        writer.writerow((*_about(s.row), "", "", "", "", "", "", "", s.reason))
    return out.getvalue()


def _about(row: Row) -> tuple[object, ...]:
    said = (row.text(c) for c in ("model_name", "gpu_model", "n_gpus", "strategy"))
    return (row.line, _harmless(row.text("id")), _harmless(row.source), *map(_harmless, said))


def _harmless(text: str) -> str:
    """Return a cell that a spreadsheet does not run as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _short(value: float) -> str:
    return f"{value:.5g}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
