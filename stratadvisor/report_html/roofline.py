"""The roofline of a device: what memory feeds, what the units compute, and where products lie under it.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009. Attainable rate = min(peak, intensity * memory rate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Table, clean, short
from stratadvisor.schema.cluster import Cluster, Device, NodeClass
from stratadvisor.schema.plan import Plan
from stratadvisor.units import format_flops, format_rate

MAX_CLASSES, MAX_POINTS = 4, 60
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
_PREFERRED = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, slots=True)
class _Point:
    label: str
    kind: str
    intensity: float
    rate: float


def product_intensity(rows: float, out_width: float, in_width: float, element_bytes: int) -> float:
    """Return FLOP per byte of a product whose operands and result cross memory once."""
    moved = element_bytes * (rows * out_width + rows * in_width + out_width * in_width)
    return 2.0 * rows * out_width * in_width / moved


def figures(cluster: Cluster, plan: Plan | None) -> tuple[Figure, ...]:
    """Return a roofline for each class, those that the plan uses first."""
    used = {g.node_class for g in plan.groups} if plan else set()
    classes = sorted(cluster.classes, key=lambda c: c.name not in used)
    kinds = list({(c.device.name, c.device.memory_total_bytes): c for c in reversed(classes)}.values())[::-1]
    return tuple(_figure(c, number, plan) for number, c in enumerate(kinds[:MAX_CLASSES]))


def _precision(device: Device, plan: Plan | None) -> str:
    known = {k for k, v in {**device.peak_flops_per_second, **device.measured_flops_per_second}.items() if v > 0}
    wanted = "bf16" if plan and plan.precision == "bf16_pure" else plan.precision if plan else ""
    if wanted in known:
        return wanted
    return next((p for p in _PREFERRED if p in known), wanted or "fp32")


def _figure(node_class: NodeClass, number: int, plan: Plan | None) -> Figure:
    device, key = node_class.device, f"roofline-{number}"
    precision = _precision(device, plan)
    bandwidth = device.memory_bandwidth_bytes_per_second
    measured = device.measured_flops_per_second.get(precision)
    peak = device.peak_flops_per_second.get(precision) if device.kind != "cpu" else None
    title = f"Roofline of {device.name}, {precision}"
    roof = max(measured or 0.0, peak or 0.0)
    where = device.origins.get("memory_bandwidth_bytes_per_second", "unknown")
    if not bandwidth or not roof:
        missing = "the memory rate" if not bandwidth else f"the {precision} rate"
        return Figure(
            key=key,
            title=title,
            summary="A roofline needs both the rate of products and the rate of memory.",
            table=Table(columns=(), rows=()),
            unknown=f"{missing} of {device.name} is neither measured nor in the catalog",
        )
    origin = device.origins.get(f"matmul_{precision}_flops_per_second", "measured")
    points = _measured_points(device, precision, origin) + _plan_points(device, precision, plan, roof, bandwidth)
    tops = [(f"published peak {format_flops(peak)} (catalog)", peak)] if peak else []
    tops += [(f"sustained {format_flops(measured)} ({origin})", measured)] if measured else []
    memory = f"memory {format_rate(bandwidth)} ({where})"
    ridge = roof / bandwidth
    summary = clean(
        f"FLOP per byte across, FLOP/s up, both logarithmic. {memory}; {'; '.join(t for t, _ in tops)}. Left of"
        f" {ridge:.3g} FLOP per byte memory is the limit, right of it the units."
        + (
            " Hollow marks: the highest rate the roof allows to products of this model."
            if plan and plan.workload.model.is_transformer
            else ""
        )
    )
    rows = [(t, "", format_flops(v)) for t, v in tops] + [(memory, "", f"ridge at {ridge:.3g} FLOP/B")]
    rows += [(f"{p.label} ({p.kind})", f"{p.intensity:.3g}", format_flops(p.rate)) for p in points]
    table = Table(columns=("what", "FLOP per byte", "rate"), rows=tuple(rows))
    spec = _spec(points, tops, bandwidth, ridge)
    return Figure(key=key, title=title, summary=summary, table=table, svg=charts.draw(key, title, summary, spec))


def _measured_points(device: Device, precision: str, origin: str) -> list[_Point]:
    each = ELEMENT_BYTES.get(precision, 4)
    return [
        _Point(f"{edge}^3 product", origin, product_intensity(edge, edge, edge, each), rate)
        for edge, rate in sorted(device.matmul_by_size.get(precision, {}).items())
        if edge > 0 and rate > 0
    ][:MAX_POINTS]


def _plan_points(device: Device, precision: str, plan: Plan | None, roof: float, bandwidth: float) -> list[_Point]:
    if plan is None or not plan.workload.model.is_transformer:
        return []
    model, each = plan.workload.model, ELEMENT_BYTES.get(precision, 4)
    group = next((g for g in plan.groups if g.device_name == device.name), None)
    if group is None or not (model.hidden_size and model.ffn_hidden_size):
        return []
    tokens = group.micro_batch_size * plan.batch.sequence_length
    widths = {
        "attention output": (model.hidden_size, model.attention_width),
        "MLP": (model.ffn_hidden_size, model.hidden_size),
        "head": (model.vocab_size, model.hidden_size),
    }
    found = []
    for name, (out_width, in_width) in widths.items():
        if out_width > 0 and in_width > 0:
            at = product_intensity(tokens, out_width, in_width, each)
            found.append(_Point(f"{name}, {tokens} tokens", "estimated", at, min(roof, at * bandwidth)))
    return found


def _spec(points: list[_Point], tops: list[tuple[str, float]], bandwidth: float, ridge: float) -> charts.Spec:
    reach = [ridge, *(p.intensity for p in points)]
    left, right = min(reach) / 8, max(reach) * 6
    best = max(rate for _, rate in tops)
    lowest = min([left * bandwidth, *(p.rate for p in points)])
    x = charts.quantity(
        "intensity",
        "FLOP per byte",
        scale=charts.logarithmic(left, right),
        axis={"values": charts.round_ticks(left, right), **charts.PLAIN},
    )
    y = charts.quantity(
        "rate",
        None,
        scale=charts.logarithmic(lowest, best * 1.8),
        axis={"labelExpr": FLOPS_LABEL, "values": charts.round_ticks(lowest, best * 1.8)},
    )
    slope = [{"intensity": left, "rate": left * bandwidth}, {"intensity": ridge, "rate": best}]
    layers: list[charts.Spec] = [
        {
            "data": charts.rows(slope),
            "mark": {"type": "line", "strokeWidth": 3, "color": theme.LIT.light},
            "encoding": {"x": x, "y": y},
        }
    ]
    for number, (label, rate) in enumerate(tops):
        start = rate / bandwidth
        flat = [{"intensity": start, "rate": rate}, {"intensity": right, "rate": rate}]
        dash = {"strokeDash": [7, 4]} if number == 0 and len(tops) > 1 else {}
        mark = {"type": "line", "strokeWidth": 3, "color": theme.LIT.light, **dash}
        layers.append({"data": charts.rows(flat), "mark": mark, "encoding": {"x": x, "y": y}})
        words = [{"intensity": right, "rate": rate, "label": short(label, 48)}]
        above = rate == best
        layers.append(
            {
                "data": charts.rows(words),
                "mark": {"type": "text", "align": "right", "dy": -14 if above else 13, "fontSize": 11},
                "encoding": {"x": x, "y": y, "text": {"field": "label"}},
            }
        )
    layers += [
        _marks(points, x, y, kind)
        for kind in ("measured", "estimated")
        if any((p.kind == "estimated") == (kind == "estimated") for p in points)
    ]
    return {"width": charts.WIDTH, "height": 240, "layer": layers}


def _marks(points: list[_Point], x: charts.Spec, y: charts.Spec, kind: str) -> charts.Spec:
    values: list[dict[str, Any]] = [
        {"intensity": p.intensity, "rate": p.rate} for p in points if (p.kind == "estimated") == (kind == "estimated")
    ]
    look = {"filled": True, "color": theme.MEASURED.light, "size": 60}
    if kind == "estimated":
        look = {"filled": False, "color": theme.GOOD.light, "size": 80, "strokeWidth": 2, "shape": "diamond"}
    return {"data": charts.rows(values), "mark": {"type": "point", "opacity": 1, **look}, "encoding": {"x": x, "y": y}}


FLOPS_LABEL = (
    "datum.value >= 1e15 ? format(datum.value / 1e15, '~g') + ' PFLOP/s' :"
    " datum.value >= 1e12 ? format(datum.value / 1e12, '~g') + ' TFLOP/s' :"
    " datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GFLOP/s' : format(datum.value / 1e6, '~g') + ' MFLOP/s'"
)
