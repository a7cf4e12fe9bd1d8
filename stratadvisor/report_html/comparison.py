"""Several clusters for one model: time with its band, energy and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stratadvisor.report.comparison import ratio
from stratadvisor.report.format import energy, interval
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Html, Table, unique
from stratadvisor.schema.comparison import ComparedCluster, Comparison
from stratadvisor.schema.plan import Interval, Plan, Prediction
from stratadvisor.units import format_count, format_seconds

_KINDS = ("the first", "compared", "what if")


def figures(found: Comparison) -> tuple[Figure, ...]:
    """Return the time of the whole run on each cluster, and its cost where a price was given."""
    planned = [(e, e.plan) for e in found.clusters if e.plan is not None]
    summary = _summary(found, planned)
    title = "Clusters: time of the whole run"
    if not planned:
        return (Figure(key="clusters", title=title, summary=summary, table=_table(found, None), unknown="no plan"),)
    base = planned[0][1].predicted
    unit, sign = charts.time_unit(max(plan.predicted.run_seconds.high for _, plan in planned))
    drawn = _draw("clusters", title, summary, planned, lambda p: p.run_seconds, unit, sign)
    found_figures = [Figure(key="clusters", title=title, summary=summary, table=_table(found, base), svg=drawn)]
    priced = [(e, plan) for e, plan in planned if plan.predicted.cost is not None]
    if priced:
        name = "Clusters: cost of the whole run"
        words = "Device hours times the price that was given; bands as for the time."
        svg = _draw("clusters-cost", name, words, priced, lambda p: p.cost, 1.0, "cost, in the currency of the price")
        rows = tuple(
            (e.name, f"{interval(cost, _money)} (estimated)") for e, plan in priced if (cost := plan.predicted.cost)
        )
        table = Table(columns=("cluster", "cost"), rows=rows)
        found_figures.append(Figure(key="clusters-cost", title=name, summary=words, table=table, svg=svg))
    return tuple(found_figures)


def _money(value: float) -> str:
    return f"{value:,.0f}"


def _summary(found: Comparison, planned: list[tuple[ComparedCluster, Plan]]) -> str:
    text = "Bars are bands that hold nine runs of ten; marks are the likely value."
    if planned:
        (first, base), best = planned[0], min(planned, key=lambda pair: pair[1].predicted.run_seconds.likely)
        if best[0] is not first:
            factor = best[1].predicted.run_seconds.likely / base.predicted.run_seconds.likely
            text += f" Fastest: {best[0].name}, in {factor:.2f} of the time of {first.name}."
        else:
            text += f" Fastest: {first.name}."
    without = [e.name for e in found.clusters if e.plan is None]
    if without:
        text += f" No plan fits on {', '.join(without)} (reason in the table)."
    return text


def _draw(
    key: str,
    title: str,
    summary: str,
    planned: list[tuple[ComparedCluster, Plan]],
    pick: Callable[[Prediction], Interval | None],
    unit: float,
    sign: str,
) -> Html:
    values: list[dict[str, Any]] = []
    for position, (entry, plan) in enumerate(planned):
        value = pick(plan.predicted)
        if value is None:
            continue
        kind = _KINDS[0] if position == 0 else _KINDS[2] if entry.what_if else _KINDS[1]
        bounds = {"low": value.low / unit, "likely": value.likely / unit, "high": value.high / unit}
        values.append({"label": _short(entry.name), "kind": kind, **bounds})
    for row, label in zip(values, unique(str(v["label"]) for v in values), strict=True):
        row["label"] = label
    present = [k for k in _KINDS if any(v["kind"] == k for v in values)]
    colours = [theme.LIT.light, theme.CATEGORIES[3].light, theme.QUIET.light]
    x = charts.quantity(
        "low", f"{sign} (estimated)", scale={"zero": True, "nice": True}, axis={**charts.PLAIN, "tickCount": 5}
    )
    spec: charts.Spec = {
        "width": charts.WIDTH,
        "height": {"step": 26},
        "data": charts.rows(values),
        "encoding": {
            "y": charts.names("label", [v["label"] for v in values], axis={"ticks": False, "labelPadding": 6})
        },
        "layer": [
            {
                "mark": {"type": "bar", "height": 12, "color": theme.BAND.light, "cornerRadius": 4},
                "encoding": {"x": x, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
                "encoding": {
                    "x": {"field": "likely", "type": "quantitative"},
                    "color": charts.names(
                        "kind",
                        present,
                        scale={"domain": list(_KINDS), "range": colours},
                        legend={"columns": 3, "values": present},
                    ),
                    "shape": charts.names(
                        "kind", present, scale={"domain": list(_KINDS), "range": ["diamond", "triangle-up", "circle"]}
                    ),
                },
            },
        ],
    }
    return charts.draw(key, title, summary, spec)


def _short(name: str) -> str:
    """Return a name that an axis has room for: its end tells what-ifs apart."""
    return name if len(name) <= 22 else f"{name[:8]}…{name[-13:]}"


def _table(found: Comparison, base: Prediction | None) -> Table:
    rows = []
    for entry in found.clusters:
        if entry.plan is None or base is None:
            rows.append((entry.name, "no plan", entry.reason, "", "", "", ""))
            continue
        p = entry.plan.predicted
        joules = p.energy_joules
        rows.append(
            (
                entry.name,
                f"{entry.plan.strategy}, {entry.plan.variant}",
                f"{interval(p.run_seconds, format_seconds)} (estimated)",
                ratio(p.run_seconds, base.run_seconds),
                format_count(p.tokens_per_second.likely),
                "unknown" if joules is None else f"{energy(joules.likely)} ({ratio(joules, base.energy_joules)})",
                "no price given" if p.cost is None else f"{_money(p.cost.likely)} ({ratio(p.cost, base.cost)})",
            )
        )
    columns = ("cluster", "plan", "whole run", "against the first", "tokens per second", "energy", "cost")
    return Table(columns=columns, rows=tuple(rows))
