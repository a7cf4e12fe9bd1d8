"""Predicted against measured: each quantity as a share of its prediction, and who won."""

from __future__ import annotations

import math
from typing import Any

from stratadvisor.report.format import UNKNOWN, percent
from stratadvisor.report_html import charts, run_steps, theme
from stratadvisor.report_html.markup import Figure, Table, clean, unique
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.validation import Comparison, RunConfigOutcome, ValidationResult
from stratadvisor.units import format_bytes, format_count, format_seconds
from stratadvisor.validate.metrics import RunMetrics


def figures(outcome: RunConfigOutcome | None, metrics: RunMetrics | None, plan: Plan | None) -> tuple[Figure, ...]:
    """Return the comparison of each run, the steps of the first, and the winner where several ran."""
    found: list[Figure] = []
    if outcome is not None:
        found += [_compared(result, index) for index, result in enumerate(outcome.results)]
        if len(outcome.results) > 1:
            found.append(_winner(outcome))
    found += run_steps.figures(outcome, metrics, plan)
    return tuple(found)


def shown(value: float, unit: str) -> str:
    """Return a number of a comparison for people."""
    show = {"seconds": format_seconds, "bytes": format_bytes, "fraction": percent}.get(unit, format_count)
    return show(value)


def _compared(result: ValidationResult, index: int) -> Figure:
    key = f"compared-{index}"
    title = f"Predicted against measured: {result.strategy}"
    drawn = [c for c in result.comparisons if c.predicted is not None and c.predicted.likely > 0]
    summary = _summary(result)
    table = Table(
        columns=("quantity", "predicted (estimated)", "90 % band", "measured", "measured / predicted", "verdict"),
        rows=tuple(_cells(c) for c in result.comparisons),
    )
    if not drawn:
        why = "the run ended before anything could be compared"
        return Figure(key=key, title=title, summary=summary, table=table, unknown=why)
    drawing = charts.draw(key, title, summary, _spec(drawn))
    return Figure(key=key, title=title, summary=summary, table=table, svg=drawing)


def _ratio(row: Comparison) -> float | None:
    if row.measured is None or row.predicted is None or row.predicted.likely <= 0:
        return None
    ratio = row.measured / row.predicted.likely
    return ratio if math.isfinite(ratio) else None


def _cells(row: Comparison) -> tuple[str, ...]:
    predicted, ratio = row.predicted, _ratio(row)
    band = "" if predicted is None or predicted.low == predicted.high else (
        f"{shown(predicted.low, row.unit)} to {shown(predicted.high, row.unit)}"
    )  # fmt: skip
    verdict = {True: "inside the band", False: "outside the band", None: row.note or "no band to judge by"}[row.inside]
    return (
        row.quantity,
        UNKNOWN if predicted is None else shown(predicted.likely, row.unit),
        band,
        UNKNOWN if row.measured is None else f"{shown(row.measured, row.unit)} (measured)",
        "" if ratio is None else f"{ratio:.2f}",
        verdict,
    )


def _summary(result: ValidationResult) -> str:
    judged = [c for c in result.comparisons if c.inside is not None]
    inside = sum(1 for c in judged if c.inside)
    text = f"{result.steps_done} of {result.steps_asked} steps, {result.outcome}."
    if result.comparisons:
        text += " Bars are the 90 % bands around the prediction (1.0), marks what was measured."
    if judged:
        text += f" {inside} of {len(judged)} quantities lie inside their band."
    missing = [c.quantity for c in result.comparisons if c.measured is None]
    if missing:
        text += f" Not measured: {', '.join(missing)}."
    if result.proxy:
        text += f" The run was scaled down: {result.proxy}."
    if result.cause is not None:
        text += f" Cause: {result.cause.summary}" + (f" Fix: {result.cause.fix}" if result.cause.fix else "")
    return clean(text)


def _spec(drawn: list[Comparison]) -> charts.Spec:
    labels = unique(c.quantity for c in drawn)
    values: list[dict[str, Any]] = []
    reach = [1.0]
    for label, row in zip(labels, drawn, strict=True):
        assert row.predicted is not None
        ratio, likely = _ratio(row), row.predicted.likely
        low, high = row.predicted.low / likely, min(row.predicted.high / likely, charts.HUGE)
        known = ratio is not None and ratio > 0
        reach += [high, *([low] if low > 0 else []), *([ratio] if ratio is not None and ratio > 0 else [])]
        verdict = {True: "inside", False: "outside", None: "no band"}[row.inside]
        values.append(
            {
                "label": label,
                "low": max(low, 1e-3),
                "high": max(high, 1e-3),
                "ratio": ratio if known else None,
                "verdict": verdict,
                "words": f"{shown(row.measured, row.unit)} measured" if row.measured is not None else "not measured",
            }
        )
    scale = charts.logarithmic(min(0.8, *reach), max(1.25, *reach))
    kinds = ["inside", "outside", "no band"]
    colours = [theme.GOOD.light, theme.BAD.light, theme.QUIET.light]
    axis = {"values": charts.round_ticks(*scale["domain"]), "labelExpr": "format(datum.value, '~g') + ' x'"}
    colour = charts.names("verdict", kinds, scale={"domain": kinds, "range": colours}, legend={"columns": 3})
    shape = charts.names("verdict", kinds, scale={"domain": kinds, "range": ["circle", "cross", "square"]})
    return {
        "width": charts.WIDTH - 30,
        "height": {"step": 46},
        "data": charts.rows(values),
        "encoding": {"y": charts.names("label", labels, axis={"ticks": False, "labelPadding": 6})},
        "layer": [
            {
                "mark": {"type": "bar", "height": 16, "color": theme.BAND.light, "cornerRadius": 4},
                "encoding": {
                    "x": charts.quantity("low", "of the prediction", scale=scale, axis=axis),
                    "x2": {"field": "high"},
                },
            },
            {
                "data": charts.rows([{"at": 1}]),
                "mark": {"type": "rule", "strokeWidth": 2, "color": theme.LIT.light},
                "encoding": {"x": {"field": "at", "type": "quantitative"}, "y": None},
            },
            {
                "transform": [{"filter": "datum.ratio != null"}],
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {"x": {"field": "ratio", "type": "quantitative"}, "color": colour, "shape": shape},
            },
            {
                "mark": {"type": "text", "align": "right", "dy": -15, "fontSize": 11, "color": theme.QUIET.light},
                "encoding": {"x": {"value": charts.WIDTH - 30}, "text": {"field": "words"}},
            },
        ],
    }


def _winner(outcome: RunConfigOutcome) -> Figure:
    title = "Which strategy really won"
    known = [r for r in outcome.results if r.tokens_per_second is not None]
    rows = tuple(
        (
            r.strategy,
            UNKNOWN if r.tokens_per_second is None else f"{format_count(r.tokens_per_second)} (measured)",
            r.outcome,
        )
        for r in outcome.results
    )
    table = Table(columns=("strategy", "tokens per second", "run"), rows=rows)
    chosen = outcome.results[0].strategy
    if not known:
        return Figure(
            key="winner", title=title, summary="No run was timed.", table=table, unknown="no run came to a rate"
        )
    best = max(known, key=lambda r: r.tokens_per_second or 0.0).strategy
    summary = clean(
        f"Tokens per second, measured in runs of the same length. The plan chose {chosen}; measured best is {best}."
    )
    labels = unique(r.strategy for r in known)
    values = [
        {"label": label, "rate": r.tokens_per_second, "words": format_count(r.tokens_per_second or 0.0)}
        for label, r in zip(labels, known, strict=True)
    ]
    spec = {
        "width": charts.WIDTH,
        "height": {"step": 30},
        "data": charts.rows(values),
        "encoding": {
            "y": charts.names("label", labels, axis={"ticks": False}),
            "x": charts.quantity(
                "rate", "tokens per second (measured)", axis={"tickCount": 4, "labelExpr": "format(datum.value, '~s')"}
            ),
        },
        "layer": [
            {"mark": {"type": "bar", "height": 16, "color": theme.MEASURED.light}},
            {
                "mark": {"type": "text", "align": "right", "dx": -6, "color": theme.GROUND.light},
                "encoding": {"text": {"field": "words"}},
            },
        ],
    }
    return Figure(
        key="winner", title=title, summary=summary, table=table, svg=charts.draw("winner", title, summary, spec)
    )
