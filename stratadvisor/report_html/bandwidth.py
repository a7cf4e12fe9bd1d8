"""What links carry: pairs of devices as a heat map, collectives by message size."""

from __future__ import annotations

from typing import Any

from stratadvisor.report.format import UNKNOWN, reading
from stratadvisor.report_html import charts, theme
from stratadvisor.report_html.markup import Figure, Table, clean
from stratadvisor.schema.profile import ClusterProfile, CollectiveSweep, DeviceLink, NodeProfile
from stratadvisor.units import format_bytes, format_rate, format_seconds

MAX_NODES, MAX_LABELLED, MAX_DRAWN, MAX_SWEEPS = 4, 8, 32, 10
_GIGA = 1e9


def figures(profile: ClusterProfile) -> tuple[Figure, ...]:
    """Return a heat map for each different node with links, and the collectives; or one that says nothing is known."""
    different = _different([n for n in profile.nodes if n.links])
    found = [_pairs(node, number) for number, node in enumerate(different[:MAX_NODES])]
    if profile.collectives:
        found.append(_collectives(profile.collectives))
    if not found:
        how = (
            "the cluster was described, not measured" if profile.source == "declared" else "see what was not looked at"
        )
        found.append(
            Figure(
                key="bandwidth",
                title="Bandwidth between devices",
                summary="No pair of devices and no collective has a figure in this profile.",
                table=Table(columns=(), rows=()),
                unknown=f"no pair and no collective was measured ({how})",
            )
        )
    return tuple(found)


def _different(nodes: list[NodeProfile]) -> list[NodeProfile]:
    """Return the first node of each set of equal links."""
    return list({repr(n.links): n for n in reversed(nodes)}.values())[::-1]


def _pairs(node: NodeProfile, number: int) -> Figure:
    indexes = sorted(
        {d.index for d in node.devices} | {i for link in node.links for i in (link.device_a, link.device_b)}
    )
    drawn = indexes[:MAX_DRAWN]
    links: dict[tuple[int, int], DeviceLink] = {}
    for link in node.links:
        links.setdefault((link.device_b, link.device_a), link)
        links[link.device_a, link.device_b] = link
    cells = [_cell(a, b, links.get((a, b))) for a in drawn for b in drawn if a != b]
    known = [c["rate"] for c in cells if c["rate"] is not None]
    title = f"Bandwidth of device pairs, {node.hostname}"
    summary = _pair_summary(known, len(cells) - len(known), len(indexes) - len(drawn))
    size = min(WIDEST, max(40, charts.WIDTH / len(drawn))) * len(drawn)
    spec = _heat(cells, [str(i) for i in drawn], known, size)
    rows = tuple(
        (f"{a} and {b}", link.kind.replace("_", " "), _number_of(link), _access(link), _rate(link))
        for (a, b), link in sorted(links.items())
        if (a, b) == (link.device_a, link.device_b)
    )
    table = Table(columns=("devices", "joined by", "links", "peer access", "one direction"), rows=rows)
    key = f"pairs-{number}"
    return Figure(key=key, title=title, summary=summary, table=table, svg=charts.draw(key, title, summary, spec))


WIDEST = 64.0


def _cell(a: int, b: int, link: DeviceLink | None) -> dict[str, Any]:
    rate = None if link is None else link.bandwidth_bytes_per_second.value
    label = "?" if rate is None else f"{rate / _GIGA:.3g}"
    return {"from": str(a), "to": str(b), "rate": None if rate is None else rate / _GIGA, "label": label}


def _step(rate: float, known: list[float]) -> int:
    """Return which of the heat colours a rate has: equal parts of the range found."""
    low, high = min(known), max(known)
    if high - low <= 0.02 * high:
        return 4
    return min(len(theme.HEAT) - 1, int((rate - low) / (high - low) * len(theme.HEAT)))


def _heat(cells: list[dict[str, Any]], order: list[str], known: list[float], size: float) -> charts.Spec:
    for cell in cells:
        step = None if cell["rate"] is None else _step(cell["rate"], known)
        cell["fill"] = theme.UNKNOWN.light if step is None else theme.HEAT[step]
        cell["ink"] = theme.INK.light if step is None else theme.HEAT_INK[step]
    axis = {"orient": "top", "labelAngle": 0}
    place = {
        "x": charts.names("to", order, "to device", axis=axis),
        "y": charts.names("from", order, "from device"),
    }
    direct = {"type": "nominal", "scale": None}
    layers: list[charts.Spec] = [
        {
            "mark": {"type": "rect", "stroke": theme.GROUND.light, "strokeWidth": 2},
            "encoding": {"color": {"field": "fill", **direct}},
        }
    ]
    if len(order) <= MAX_LABELLED:
        layers.append(
            {"mark": {"type": "text"}, "encoding": {"text": {"field": "label"}, "color": {"field": "ink", **direct}}}
        )
    return {"data": charts.rows(cells), "width": size, "height": size, "encoding": place, "layer": layers}


def _pair_summary(known: list[float], unknown: int, left: int) -> str:
    text = "No rate is known." if not known else (
        f"GB/s in one direction, dark is fast: {format_rate(min(known) * _GIGA)} to {format_rate(max(known) * _GIGA)}."
    )  # fmt: skip
    if unknown:
        text += f" {unknown} of {unknown + len(known)} cells are unknown (grey, marked ?)."
    if left:
        text += f" {left} more devices are not drawn; the table has them."
    return text


def _number_of(link: DeviceLink) -> str:
    return "" if link.num_links is None else f"{link.num_links}"


def _access(link: DeviceLink) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[link.peer_access]


def _rate(link: DeviceLink) -> str:
    return reading(link.bandwidth_bytes_per_second, format_rate)


def _series(sweep: CollectiveSweep) -> str:
    where = "inside a node" if sweep.scope == "intra_node" else "between nodes"
    return f"{sweep.operation.replace('_', '-')} {where}, {sweep.world_size} ranks, {sweep.backend}"


def _collectives(sweeps: tuple[CollectiveSweep, ...]) -> Figure:
    title = "Collectives by message size"
    drawn = sweeps[:MAX_SWEEPS]
    order = list(dict.fromkeys(_series(s) for s in drawn))
    points = [
        {"series": _series(s), "size": float(p.message_bytes), "rate": p.bus_bandwidth_bytes_per_second}
        for s in drawn
        for p in s.points
    ]
    rows = [
        (
            format_bytes(p.message_bytes),
            _series(s),
            format_seconds(p.seconds),
            format_rate(p.bus_bandwidth_bytes_per_second),
        )
        for s in sweeps
        for p in s.points
    ]
    fits = [
        f"{_series(s)}: latency {reading(s.latency_seconds, format_seconds)},"
        f" large messages {reading(s.bus_bandwidth_bytes_per_second, format_rate)}"
        for s in drawn
    ]
    summary = clean("Measured bus bandwidth, both axes logarithmic. " + "; ".join(fits) + ".")
    table = Table(columns=("message", "collective", "time (measured)", "bus bandwidth (measured)"), rows=tuple(rows))
    if not points:
        return Figure(key="collectives", title=title, summary=summary, table=table, unknown="the sweeps hold no point")
    sizes, rates = [float(p["size"]) for p in points], [float(p["rate"]) for p in points]  # type: ignore[arg-type]
    spec = {
        "data": charts.rows(points),
        "width": charts.WIDTH,
        "height": 220,
        "mark": {"type": "line", "point": {"size": 45, "filled": True}, "strokeWidth": 2},
        "encoding": {
            "x": charts.quantity(
                "size", "message", scale=charts.logarithmic(min(sizes), max(sizes)), axis=_bytes_axis(sizes)
            ),
            "y": charts.quantity(
                "rate", "bus bandwidth", scale=charts.logarithmic(min(rates), max(rates)),
                axis={"labelExpr": RATE_LABEL, "values": charts.round_ticks(min(rates), max(rates))},
            ),
            "color": charts.names(
                "series", order, scale={"domain": order, "range": [t.light for t in theme.CATEGORIES]},
                legend={"columns": 1, "symbolType": "stroke", "symbolStrokeWidth": 3, "labelLimit": 360},
            ),
        },
    }  # fmt: skip
    drawing = charts.draw("collectives", title, summary, spec)
    return Figure(key="collectives", title=title, summary=summary, table=table, svg=drawing)


RATE_LABEL = (
    "datum.value >= 1e12 ? format(datum.value / 1e12, '~g') + ' TB/s' :"
    " datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' GB/s' :"
    " datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' MB/s' : format(datum.value / 1e3, '~g') + ' kB/s'"
)


def _bytes_axis(sizes: list[float]) -> charts.Spec:
    """Return ticks at powers of two that people know."""
    marks = [(2.0**p, label) for p, label in _POWERS if min(sizes) / 1.2 <= 2.0**p <= max(sizes) * 1.2]
    table = " : ".join(f"datum.value == {value:.0f} ? '{label}'" for value, label in marks)
    return {"values": [value for value, _ in marks], "labelExpr": f"{table} : ''" if marks else "''"}


_POWERS = (
    (2, "4 B"), (6, "64 B"), (10, "1 KiB"), (14, "16 KiB"), (18, "256 KiB"), (22, "4 MiB"), (26, "64 MiB"),
    (30, "1 GiB"), (34, "16 GiB"),
)  # fmt: skip
