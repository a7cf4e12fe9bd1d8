"""Everything that was considered, on one scale: predicted time to the target, with its band."""

from __future__ import annotations

from typing import Any

from stratadvisor.report.format import interval
from stratadvisor.report.plan import TITLES
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Html, Table, e, join, lines, tag, unique
from stratadvisor.schema.plan import Alternative, Interval, Plan
from stratadvisor.units import format_seconds

MAX_DRAWN, MAX_SAID = 14, 40
LOGARITHMIC_FROM = 4.0


def figure(plan: Plan) -> Figure:
    """Return the ranking; infeasible candidates are in the table with the number that kills them."""
    title = "Ranking: predicted time to the target"
    ranked = sorted(
        (a for a in plan.alternatives if a.run_seconds is not None and a.feasible),
        key=lambda a: (a.run_seconds.likely if a.run_seconds else 0.0, a.strategy, a.variant),
    )
    killed = [a for a in plan.alternatives if a not in ranked]
    values = [_row(plan.strategy, plan.variant, plan.predicted.run_seconds, "chosen")]
    values += [_row(a.strategy, a.variant, a.run_seconds, _kind(a)) for a in ranked[: MAX_DRAWN - 1] if a.run_seconds]
    values.sort(key=lambda v: (v["likely"], v["kind"] != "chosen"))
    for value, label in zip(values, unique(str(v["label"]) for v in values), strict=True):
        value["label"] = label
    summary = _summary(plan, ranked, len(killed))
    spec = _spec(values)
    drawing = charts.draw("ranking", title, summary, spec)
    return Figure(key="ranking", title=title, summary=summary, table=_table(plan, ranked, killed), svg=drawing)


def not_chosen(plan: Plan) -> Html:
    """Return the reason against each candidate, and what would change the choice."""
    items = []
    for other in plan.alternatives[:MAX_SAID]:
        words = other.reason or ("does not fit" if not other.feasible else "predicted slower")
        family = "" if other.inside_family else "; outside the flowchart's family"
        text = f": {words}{family} ({other.variant})"
        named = TITLES.get(other.strategy, "")
        items.append(tag("li", tag("strong", e(other.strategy)), e(f" {named}" if named else ""), e(text)))
    flips = [f"{f.fact} is {f.now}; at {f.threshold}, {f.then} wins" for f in plan.flips]
    parts = [tag("h3", e("Why not the others")), tag("ul", *items)] if items else []
    if flips:
        parts += [tag("h3", e("What would change the choice")), lines(flips)]
    return join(parts)


def _kind(other: Alternative) -> str:
    return "in the chosen family" if other.inside_family else "outside the family"


def _row(strategy: str, variant: str, run: Interval | None, kind: str) -> dict[str, Any]:
    assert run is not None
    return {"label": strategy, "variant": variant, "low": run.low, "likely": run.likely, "high": run.high, "kind": kind}


def _summary(plan: Plan, ranked: list[Alternative], killed: int) -> str:
    fitting = f"{len(ranked) + 1} candidates fit" if ranked else "One candidate fits"
    text = f"Bars are bands that hold nine runs of ten; marks are the likely value. {fitting}"
    text += f", {killed} do not (see the table)." if killed else "."
    chosen = plan.predicted.run_seconds
    overlap = [
        a.strategy
        for a in ranked
        if a.run_seconds is not None and a.run_seconds.low < chosen.high and a.run_seconds.likely >= chosen.likely
    ]
    if overlap:
        names = ", ".join(list(dict.fromkeys(overlap))[:4])
        others = " and others" if len(set(overlap)) > 4 else ""
        text += f" Bands that overlap the choice's: {names}{others}; only a run tells these apart."
    faster = [a.strategy for a in ranked if a.run_seconds is not None and a.run_seconds.likely < chosen.likely]
    if faster:
        text += f" Predicted faster, but not chosen: {', '.join(dict.fromkeys(faster))} (reason in the table)."
    return text


def _spec(values: list[dict[str, Any]]) -> charts.Spec:
    kinds = ["chosen", "in the chosen family", "outside the family"]
    colours = [theme.LIT.light, theme.QUIET.light, theme.CATEGORIES[3].light]
    unit, sign = charts.time_unit(max(v["high"] for v in values))
    values = [{**v, **{key: v[key] / unit for key in ("low", "likely", "high")}} for v in values]
    low, high = min(v["low"] for v in values), max(v["high"] for v in values)
    scale: charts.Spec = {"zero": False, "nice": True}
    axis: charts.Spec = {"tickCount": 5}
    if low > 0 and high / low > LOGARITHMIC_FROM:
        scale = charts.logarithmic(low, high)
        axis = {"values": charts.round_ticks(low, high)}
    order = [v["label"] for v in values]
    x = charts.quantity("low", f"{sign} (estimated)", scale=scale, axis={**charts.PLAIN, **axis})
    present = [k for k in kinds if any(v["kind"] == k for v in values)]
    colour = charts.names(
        "kind", present, scale={"domain": kinds, "range": colours}, legend={"columns": 3, "values": present}
    )
    return {
        "width": charts.WIDTH,
        "height": {"step": 26},
        "data": charts.rows(values),
        "encoding": {"y": charts.names("label", order, axis={"ticks": False, "labelPadding": 6})},
        "layer": [
            {
                "mark": {"type": "bar", "height": 12, "color": theme.BAND.light, "cornerRadius": 4},
                "encoding": {"x": x, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 95, "opacity": 1},
                "encoding": {
                    "x": {"field": "likely", "type": "quantitative"},
                    "color": colour,
                    "shape": charts.names(
                        "kind", present, scale={"domain": kinds, "range": ["diamond", "circle", "triangle-up"]}
                    ),
                },
            },
        ],
    }


def _table(plan: Plan, ranked: list[Alternative], killed: list[Alternative]) -> Table:
    run = plan.predicted.run_seconds
    rows = [(plan.strategy, plan.variant, f"{interval(run, format_seconds)} (estimated)", "1.00", "chosen")]
    for other in ranked:
        assert other.run_seconds is not None
        ratio = "" if other.relative_to_choice is None else f"{other.relative_to_choice:.2f}"
        why = "; ".join(w for w in (other.reason, "" if other.inside_family else "outside the flowchart's family") if w)
        rows.append(
            (other.strategy, other.variant, f"{interval(other.run_seconds, format_seconds)} (estimated)", ratio, why)
        )
    rows += [(a.strategy, a.variant, "does not fit" if not a.feasible else "unknown", "", a.reason) for a in killed]
    return Table(columns=("strategy", "how", "time to the target", "against the choice", "why"), rows=tuple(rows))
