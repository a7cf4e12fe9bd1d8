"""A run step by step: time, what it waited for, and loss, from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stratadvisor.report.format import percent
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Table
from stratadvisor.schema.plan import Interval, Plan
from stratadvisor.schema.validation import RunConfigOutcome
from stratadvisor.units import format_seconds
from stratadvisor.validate.metrics import RunMetrics, number

MAX_STEPS = 400
MAX_STEP = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    key: str
    title: str
    summary: str
    points: list[tuple[int, float]]
    show: Callable[[float], str]
    unit: float = 1.0
    """Divides values for the axis."""
    sign: str = ""
    band: Interval | None = None


def figures(outcome: RunConfigOutcome | None, metrics: RunMetrics | None, plan: Plan | None) -> list[Figure]:
    """Return time, noticeable waits and loss step by step; a long run is thinned to equally spaced steps."""
    if metrics is None or not metrics.steps:
        return []
    every = -(-len(metrics.steps) // MAX_STEPS)
    steps = metrics.steps[::every]
    thinned = f" One step of {every} is shown." if every > 1 else ""
    scaled = bool(outcome and outcome.results[0].proxy)
    band = None if plan is None or scaled else plan.predicted.step_seconds
    times, losses = _points(steps, "step_seconds"), _points(steps, "loss")
    found = []
    if times:
        words = "Time of each step, measured; the first ones warm up." + thinned
        if band is not None:
            words += f" Shaded: predicted {format_seconds(band.low)} to {format_seconds(band.high)} (estimated)."
        unit, sign = charts.time_unit(max(v for _, v in times))
        series = _Series(
            key="times",
            title="Time of each step",
            summary=words,
            points=times,
            show=format_seconds,
            unit=unit,
            sign=f"{sign} (measured)",
            band=band,
        )
        found.append(_figure(series))
    found += [_figure(series) for series in _waits(steps, thinned)]
    if losses:
        words = f"Training loss, measured: {losses[0][1]:.4g} at first, {losses[-1][1]:.4g} at last." + thinned
        found.append(_figure(_Series(key="loss", title="Loss", summary=words, points=losses, show="{:.4g}".format)))
    return found


WAITS = (
    ("communication_seconds", "communication", "Waiting for communication", "exposed, slower ranks included"),
    ("data_wait_seconds", "data", "Waiting for data", "of the rank that waited most"),
    ("straggler_spread_seconds", "stragglers", "Slowest rank behind the fastest", "of their own time"),
)
WORTH_SHOWING = 0.02
"""Share of a step from which a wait gets a figure."""


def _waits(steps: list[dict[str, Any]], thinned: str) -> list[_Series]:
    """Return what steps waited for, where it is a noticeable part of them."""
    found = []
    for key, name, title, meaning in WAITS:
        points = _points(steps, key)
        whole = sum(v for step in steps if number(step, key) is not None and (v := number(step, "step_seconds")))
        share = sum(value for _, value in points) / whole if whole > 0 else 0.0
        if share < WORTH_SHOWING:
            continue
        words = f"{title}, {meaning}, measured: {percent(share)} of the time.{thinned}"
        unit, sign = charts.time_unit(max(v for _, v in points))
        found.append(
            _Series(
                key=f"waits-{name}",
                title=title,
                summary=words,
                points=points,
                show=format_seconds,
                unit=unit,
                sign=f"{sign} (measured)",
            )
        )
    return found


def _points(steps: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    """Return (step, value) where both are numbers that an axis takes."""
    found = ((int(s["step"]), number(s, key)) for s in steps)
    return [(step, value) for step, value in found if value is not None and abs(step) < MAX_STEP]


def _figure(series: _Series) -> Figure:
    layers = [] if series.band is None else _band(series.band, series.unit)
    mark = {
        "type": "line",
        "color": theme.MEASURED.light,
        "strokeWidth": 2,
        "point": {"color": theme.MEASURED.light, "size": 34},
    }
    values = charts.rows([{"step": step, "value": value / series.unit} for step, value in series.points])
    steps = [step for step, _ in series.points]
    ticks = {"values": charts.whole_ticks(min(steps), max(steps)), **charts.PLAIN, "grid": False}
    x = charts.quantity("step", "step", axis=ticks, scale={"zero": False, "nice": False})
    scale = {"zero": series.band is not None}
    y = charts.quantity("value", series.sign or None, scale=scale, axis={"tickCount": 5, **charts.PLAIN})
    layers.append({"data": values, "mark": mark, "encoding": {"x": x, "y": y}})
    spec = {"width": charts.WIDTH, "height": 170, "layer": layers}
    rows = tuple((str(step), f"{series.show(value)} (measured)") for step, value in series.points)
    table = Table(columns=("step", series.title.lower()), rows=rows)
    drawing = charts.draw(series.key, series.title, series.summary, spec)
    return Figure(key=series.key, title=series.title, summary=series.summary, table=table, svg=drawing)


def _band(band: Interval, unit: float) -> list[charts.Spec]:
    data = charts.rows([{"low": band.low / unit, "high": band.high / unit, "likely": band.likely / unit}])
    return [
        {
            "data": data,
            "mark": {"type": "rect", "color": theme.BAND.light},
            "encoding": {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
        },
        {
            "data": data,
            "mark": {"type": "rule", "color": theme.LIT.light, "strokeWidth": 2},
            "encoding": {"y": {"field": "likely", "type": "quantitative"}},
        },
    ]
