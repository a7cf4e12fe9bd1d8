"""Predicted memory of a device of each class, against what is free there."""

from __future__ import annotations

from typing import Any

from stratadvisor.report.format import UNKNOWN, interval, percent
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Table, clean, unique
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.plan import NodeGroup, Plan
from stratadvisor.units import GIB, format_bytes

MAX_GROUPS = 12
_ORDER = (
    "parameters", "gradients", "optimizer_states", "activations", "logits", "gathered_units", "buffers", "adapters",
    "context", "reserve",
)  # fmt: skip
"""Also the order of colours, so that a term has the same colour in each report."""


def figure(plan: Plan, cluster: Cluster | None) -> Figure:
    """Return stacked bars of memory terms with the band of the peak and the line of what is free."""
    title = "Memory of a device, by class"
    totals = {c.name: c.device.memory_total_bytes for c in cluster.classes} if cluster else {}
    groups = plan.groups[:MAX_GROUPS]
    summary = _summary(plan)
    drawing = charts.draw("memory", title, summary, _spec(groups, totals))
    return Figure(key="memory", title=title, summary=summary, table=_table(plan), svg=drawing, wide=len(groups) > 3)


def _terms(group: NodeGroup) -> dict[str, float]:
    """Return the terms in the order of colours; a group without terms has its peak as one."""
    terms = {k: v for k, v in group.memory_terms_bytes.items() if v > 0} or {"peak": group.memory_peak_bytes.likely}
    known = [k for k in _ORDER if k in terms]
    return {k: terms[k] for k in [*known, *sorted(set(terms) - set(known))]}


def _summary(plan: Plan) -> str:
    parts = []
    for group in plan.groups[:MAX_GROUPS]:
        peak, free = group.memory_peak_bytes, group.memory_available_bytes
        if free:
            fill = f"of {format_bytes(free)} ({group.memory_available_origin}), {percent(peak.likely / free)}"
        else:
            fill = "; what is free there is unknown"
        parts.append(f"{group.node_class}: {interval(peak, format_bytes)} {fill}")
    left = len(plan.groups) - MAX_GROUPS
    more = f" {left} more classes are in the table." if left > 0 else ""
    return clean(
        "Estimated peak and what it is made of; the bracket is its band, the red line what is usable there. "
        + "; ".join(parts)
        + "."
        + more
    )


def _spec(groups: tuple[NodeGroup, ...], totals: dict[str, float | None]) -> charts.Spec:
    labels = unique((g.node_class for g in groups), 20)
    present = {term for g in groups for term in _terms(g)}
    colour = {t: theme.CATEGORIES[i].light for i, t in enumerate(_ORDER)}
    order = [t for t in _ORDER if t in present] + sorted(present - set(_ORDER))
    names = unique(t.replace("_", " ") for t in order)
    shown = dict(zip(order, names, strict=True))
    bars: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    for label, group in zip(labels, groups, strict=True):
        at = 0.0
        for term, size in _terms(group).items():
            bars.append({"class": label, "term": shown[term], "from": at / GIB, "to": (at + size) / GIB})
            at += size
        peak, free, total = group.memory_peak_bytes, group.memory_available_bytes, totals.get(group.node_class)
        marks.append(
            {
                "class": label,
                "low": peak.low / GIB,
                "high": peak.high / GIB,
                "likely": peak.likely / GIB,
                "free": None if free is None else free / GIB,
                "total": None if total is None or total == free else total / GIB,
                "words": "free memory unknown" if free is None else f"red line: {format_bytes(free)} usable",
            }
        )
    colours = [colour.get(t, theme.QUIET.light) for t in order]
    y = charts.names("class", labels, axis={"labelPadding": 6, "ticks": False})
    edge = {"color": theme.INK.light}
    return {
        "width": charts.WIDTH + 20,
        "height": {"step": 82},
        "data": charts.rows(marks),
        "encoding": {"y": y},
        "layer": [
            {
                "data": charts.rows(bars),
                "mark": {"type": "bar", "height": 26, "stroke": theme.GROUND.light, "strokeWidth": 1},
                "encoding": {
                    "x": charts.quantity("from", "GiB a device (estimated)"),
                    "x2": {"field": "to"},
                    "color": charts.names(
                        "term", names, scale={"domain": names, "range": colours}, legend={"columns": 3}
                    ),
                },
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2, "yOffset": 19, **edge},
                "encoding": {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}},
            },
            *(
                {
                    "mark": {"type": "tick", "thickness": 2, "height": 9, "opacity": 1, "yOffset": 19, **edge},
                    "encoding": {"x": {"field": field, "type": "quantitative"}},
                }
                for field in ("low", "high")
            ),
            {
                "transform": [{"filter": "datum.free != null"}],
                "mark": {"type": "tick", "thickness": 3, "height": 40, "opacity": 1, "color": theme.BAD.light},
                "encoding": {"x": {"field": "free", "type": "quantitative"}},
            },
            {
                "transform": [{"filter": "datum.total != null"}],
                "mark": {"type": "tick", "thickness": 2, "height": 40, "opacity": 1, "color": theme.QUIET.light},
                "encoding": {"x": {"field": "total", "type": "quantitative"}},
            },
            {
                "mark": {"type": "text", "align": "right", "dy": -28, "color": theme.INK.light, "dx": -4},
                "encoding": {"x": {"value": charts.WIDTH + 20}, "text": {"field": "words"}},
            },
        ],
    }


def _table(plan: Plan) -> Table:
    rows = []
    for group in plan.groups:
        peak, free = group.memory_peak_bytes, group.memory_available_bytes
        rows += [
            (group.node_class, term.replace("_", " "), f"{format_bytes(size)} (estimated)")
            for term, size in _terms(group).items()
        ]
        rows.append((group.node_class, "peak", f"{interval(peak, format_bytes)} (estimated)"))
        usable = UNKNOWN if free is None else f"{format_bytes(free)} ({group.memory_available_origin})"
        rows.append((group.node_class, "usable on the device", usable))
        if group.host_bytes_per_rank:
            rows.append(
                (group.node_class, "host memory of a rank", f"{format_bytes(group.host_bytes_per_rank)} (estimated)")
            )
    return Table(columns=("node class", "what", "size"), rows=tuple(rows))
