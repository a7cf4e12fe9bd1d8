"""The cluster as boxes: nodes, their devices, what joins them."""

from __future__ import annotations

from collections.abc import Callable

from stratadvisor.report.format import UNKNOWN
from stratadvisor.report_html import svg, theme
from stratadvisor.report_html.charts import wrap
from stratadvisor.report_html.markup import Figure, Html, Table, clean
from stratadvisor.schema.base import Origin
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.plan import NodeGroup, Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.units import format_bytes, format_rate

WIDTH = 460.0
MAX_CLASSES, MAX_NODES, MAX_DEVICES, IN_ROW = 8, 3, 32, 8
_LEFT, _CELL = 30.0, 44.0


def with_origin(value: float | None, origin: Origin, show: Callable[[float], str] = format_rate) -> str:
    """Return ``300 GB/s (catalog)``, or ``unknown``."""
    if value is None:
        return UNKNOWN
    return f"{show(value)} ({origin})"


def of_cluster(cluster: Cluster, profile: ClusterProfile, plan: Plan | None) -> Figure:
    """Return the map of a planning view; nodes that the plan uses are lit, devices that do not work are marked."""
    used = {g.node_class: g.num_nodes for g in plan.groups} if plan else {}
    lost = {n.hostname: [d.index for d in n.devices if d.healthy is False] for n in profile.nodes}
    between = "a single node" if cluster.num_nodes < 2 else f"between nodes {_between(cluster)}"
    body = [svg.words(8, 16, between, size=12.5, fill=theme.QUIET.light)]
    y = 26.0
    spine = [22.0] if cluster.num_nodes > 1 else []
    for node_class in cluster.classes[:MAX_CLASSES]:
        use = None if plan is None else used.get(node_class.name, 0)
        drawn, y = _class(node_class, y, use, lost, spine)
        body.append(drawn)
    left = cluster.classes[MAX_CLASSES:]
    if left:
        nodes = sum(c.num_nodes for c in left)
        body.append(svg.words(_LEFT, y + 14, f"and {len(left)} more kinds of node ({nodes} nodes): see the table"))
        y += 24
    if spine:
        body.insert(1, svg.line([(14.0, spine[0]), (14.0, spine[-1])], thick=3))
    summary = _summary(cluster, plan, sum(len(indexes) for indexes in lost.values()))
    title = "Cluster map"
    drawing = wrap("map", title, summary, WIDTH, y + 6, Html("".join(body)))
    return Figure(key="map", title=title, summary=summary, table=_table(cluster, used, plan), svg=drawing)


def _between(cluster: Cluster) -> str:
    origin = cluster.origins.get("inter_node_bytes_per_second", "unknown")
    return with_origin(cluster.inter_node_bytes_per_second, origin)


def _class(
    node_class: NodeClass, y: float, used: int | None, lost: dict[str, list[int]], spine: list[float]
) -> tuple[Html, float]:
    name = svg.fits(f"{node_class.num_nodes} x {node_class.name}", 420, 13)
    parts = [svg.words(_LEFT, y + 15, name, bold=True, size=13)]
    y += 24
    count = node_class.num_nodes if node_class.num_nodes <= MAX_NODES else MAX_NODES - 1
    for number in range(count):
        host = node_class.hostnames[number] if number < len(node_class.hostnames) else f"node {number + 1}"
        drawn, height = _node(node_class, y, host, None if used is None else number < used, lost.get(host, []))
        if spine:
            spine.append(y + 14)
            parts.append(_branch(y))
        parts.append(drawn)
        y += height + 8
    rest = node_class.num_nodes - count
    if rest:
        use = "" if used is None or used >= node_class.num_nodes else f", {max(0, used - count)} of them in use"
        spine.append(y + 14)
        parts += [
            _branch(y),
            svg.box(_LEFT, y, WIDTH - _LEFT - 8, 28, dashed=True, stroke=theme.QUIET.light),
            svg.words(_LEFT + 12, y + 18, f"and {rest} more alike{use}"),
        ]
        y += 36
    return Html("".join(parts)), y + 6


def _branch(y: float) -> Html:
    return svg.line([(14.0, y + 14), (_LEFT, y + 14)], thick=2)


def _node(node_class: NodeClass, y: float, name: str, lit: bool | None, lost: list[int]) -> tuple[Html, float]:
    shown = min(node_class.devices_per_node, MAX_DEVICES)
    rows = -(-(shown + len(lost[:MAX_DEVICES])) // IN_ROW)
    height = 30 + rows * 34 + 22.0
    fill, edge = (theme.LIT_GROUND.light, theme.LIT.light) if lit else (theme.UNKNOWN.light, theme.QUIET.light)
    width = WIDTH - _LEFT - 8
    parts = [
        svg.box(_LEFT, y, width, height, fill=theme.PANEL.light, stroke=edge, thick=2 if lit else 1),
        svg.words(_LEFT + 12, y + 19, svg.fits(name, 190), bold=True),
    ]
    if lit is not None:
        parts.append(svg.words(WIDTH - 18, y + 19, "in use" if lit else "not used", anchor="end", fill=edge))
    indexes = [i for i in range(shown + len(lost)) if i not in lost][:shown]
    for place, index in enumerate([*indexes, *lost[:MAX_DEVICES]]):
        x, top = _LEFT + 12 + place % IN_ROW * (_CELL + 5), y + 28 + place // IN_ROW * 34
        if place < shown:
            parts.append(svg.box(x, top, _CELL, 28, fill=fill, stroke=edge, round_=4))
            parts.append(svg.words(x + _CELL / 2, top + 18, index, anchor="middle"))
        else:
            parts.append(svg.box(x, top, _CELL, 28, stroke=theme.BAD.light, thick=2, dashed=True, round_=4))
            parts.append(svg.words(x + _CELL / 2, top + 18, f"{index} lost", anchor="middle", fill=theme.BAD.light))
    inside = with_origin(
        node_class.intra_node_bytes_per_second, node_class.origins.get("intra_node_bytes_per_second", "unknown")
    )
    more = f"; {node_class.devices_per_node - shown} more devices" if node_class.devices_per_node > shown else ""
    joined = f"{_joined(node_class)} {inside}" if node_class.devices_per_node > 1 else "one device"
    parts.append(svg.words(_LEFT + 12, y + height - 8, svg.fits(joined + more, width - 20), fill=theme.QUIET.light))
    return Html("".join(parts)), height


def _joined(node_class: NodeClass) -> str:
    return {True: "joined by NVLink,", False: "no NVLink between all,", None: "between devices"}[node_class.nvlink]


def _summary(cluster: Cluster, plan: Plan | None, lost: int) -> str:
    kinds = "; ".join(
        f"{c.num_nodes} x {c.devices_per_node} {c.device.catalog_key or c.device.name}"
        for c in cluster.classes[:MAX_CLASSES]
    )
    nodes = "1 node" if cluster.num_nodes == 1 else f"{cluster.num_nodes} nodes"
    devices = "1 device" if cluster.num_devices == 1 else f"{cluster.num_devices} devices"
    text = f"{devices} in {nodes} (nodes x devices): {kinds}."
    if plan is not None:
        text += f" The plan uses {plan.parallelism.world_size} of them (lit)."
    if lost:
        text += f" {'1 device does' if lost == 1 else f'{lost} devices do'} not work: left out of planning, marked red."
    return clean(text)


def _table(cluster: Cluster, used: dict[str, int], plan: Plan | None) -> Table:
    columns = (
        "nodes", "devices", "memory free", "memory total", "memory rate", "inside a node", "network of a node",
        "processor cores", "host memory", "used by the plan",
    )  # fmt: skip
    rows = []
    for c in cluster.classes:
        d, o = c.device, c.origins
        use = "" if plan is None else f"{used.get(c.name, 0)} of {c.num_nodes} nodes"
        rows.append(
            (
                f"{c.num_nodes} x {c.name}",
                f"{c.devices_per_node} x {d.name}",
                with_origin(d.memory_free_bytes, d.origins.get("memory_free_bytes", "unknown"), format_bytes),
                with_origin(d.memory_total_bytes, d.origins.get("memory_total_bytes", "unknown"), format_bytes),
                with_origin(
                    d.memory_bandwidth_bytes_per_second, d.origins.get("memory_bandwidth_bytes_per_second", "unknown")
                ),
                with_origin(c.intra_node_bytes_per_second, o.get("intra_node_bytes_per_second", "unknown")),
                with_origin(c.network_bytes_per_second, o.get("network_bytes_per_second", "unknown")),
                with_origin(c.cpu_cores, o.get("cpu_cores", "unknown"), "{:g}".format),
                with_origin(c.host_memory_bytes, o.get("host_memory_bytes", "unknown"), format_bytes),
                use,
            )
        )
    return Table(columns=columns, rows=tuple(rows))


def of_plan(plan: Plan) -> Figure:
    """Return the map of a plan alone: only the devices that it uses are known."""
    y, body = 10.0, []
    for group in plan.groups[:MAX_CLASSES]:
        label = svg.fits(f"{group.num_nodes} x {group.devices_per_node} {group.device_name}", 420, 13)
        body += [svg.box(8, y, WIDTH - 16, 50, fill=theme.LIT_GROUND.light, stroke=theme.LIT.light, thick=2)]
        body += [svg.words(20, y + 21, label, bold=True, size=13), svg.words(20, y + 39, _share(group, plan))]
        y += 60
    summary = "The devices that the plan uses; the profile is not given, so links and rates are unknown."
    title = "Cluster map"
    rows = tuple(
        (g.node_class, f"{g.num_nodes} x {g.devices_per_node} {g.device_name}", _share(g, plan)) for g in plan.groups
    )
    drawing = wrap("map", title, summary, WIDTH, y, Html("".join(body)))
    table = Table(columns=("node class", "devices", "share"), rows=rows)
    return Figure(key="map", title=title, summary=summary, table=table, svg=drawing)


def _share(group: NodeGroup, plan: Plan) -> str:
    return f"{group.batch_per_device} sequences {plan.parallelism.who_shares} in each step"
