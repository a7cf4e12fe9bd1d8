"""What the predicted step is made of."""

from __future__ import annotations

from stratadvisor.report.format import UNKNOWN, interval, percent
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Table, unique
from stratadvisor.schema.plan import Plan
from stratadvisor.units import format_seconds

_SMALL = 0.001
MAX_TERMS = 20


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole > 0 else UNKNOWN


def figure(plan: Plan) -> Figure:
    """Return bars of the terms of a step, longest first."""
    step = plan.predicted.step_seconds
    terms = sorted(plan.predicted.time_terms_seconds.items(), key=lambda item: (-item[1], item[0]))
    title = "What a step is made of"
    rows = [(name.replace("_", " "), f"{format_seconds(v)} (estimated)", _share(v, step.likely)) for name, v in terms]
    rows.append(("whole step", f"{interval(step, format_seconds)} (estimated)", ""))
    table = Table(columns=("term", "time", "share of the step"), rows=tuple(rows))
    basis = (
        "corrected by an earlier validation run"
        if plan.predicted.calibrated
        else "from formulas and rates, not measured"
    )
    summary = f"Whole step {interval(step, format_seconds)}, estimated {basis}; the terms add up to its likely value."
    large = [(name.replace("_", " "), v) for name, v in terms if v > max(0.0, _SMALL * step.likely)][:MAX_TERMS]
    drawn = list(zip(unique(name for name, _ in large), (v for _, v in large), strict=True))
    if not drawn:
        return Figure(
            key="step", title=title, summary=summary, table=table, unknown="the plan holds no terms of the step"
        )
    left = len(terms) - len(drawn)
    if left:
        summary += f" {left} smaller terms are in the table only."
    top = max(v for _, v in drawn)
    unit, sign = charts.time_unit(top)
    values = [
        {"term": name, "time": v / unit, "words": f"{format_seconds(v)}, {_share(v, step.likely)}"} for name, v in drawn
    ]
    order = [name for name, _ in drawn]
    spec = {
        "width": charts.WIDTH - 20,
        "height": {"step": 30},
        "data": charts.rows(values),
        "encoding": {
            "y": charts.names("term", order, axis={"ticks": False, "domain": False, "labelPadding": 6}),
            "x": charts.quantity(
                "time",
                f"{sign} (estimated)",
                scale={"domain": [0, top * 1.45 / unit]},
                axis={"tickCount": 4, "grid": False},
            ),
        },
        "layer": [
            {"mark": {"type": "bar", "height": 18, "color": theme.LIT.light}},
            {"mark": {"type": "text", "align": "left", "dx": 5}, "encoding": {"text": {"field": "words"}}},
        ],
    }
    return Figure(key="step", title=title, summary=summary, table=table, svg=charts.draw("step", title, summary, spec))
