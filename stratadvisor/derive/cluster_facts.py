"""Facts about the devices: how many, how alike, how steady, how ready."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from stratadvisor.derive.context import Context, known, spec, unknown, worst_origin
from stratadvisor.schema.base import Origin
from stratadvisor.schema.cluster import Cluster, Device
from stratadvisor.schema.facts import Fact

SPECS = (
    spec("cluster.num_devices", "number", "count", "devices that training can use, over all nodes"),
    spec("cluster.num_nodes", "number", "count", "nodes with a usable device"),
    spec("cluster.num_node_classes", "number", "count", "groups of alike nodes"),
    spec("cluster.devices_per_node_equal", "boolean", "", "whether every node has as many devices"),
    spec("cluster.mixed_devices", "boolean", "", "whether nodes have devices of different names"),
    spec("cluster.device_kind", "text", "", "cuda, rocm, xpu, cpu, or mixed"),
    spec("cluster.speed_spread", "number", "ratio", "arithmetic rate of the fastest device over the slowest one's"),
    spec(
        "cluster.speed_variation",
        "number",
        "fraction",
        "standard deviation over mean of the time of one fixed piece of work repeated within seconds (worst class)",
    ),
    spec(
        "cluster.slow_device_ratio",
        "number",
        "ratio",
        "measured rate of the median device over the slowest one's, among devices of one name",
    ),
    spec("cluster.num_unhealthy_devices", "number", "count", "devices that the driver lost"),
    spec("cluster.num_problems", "number", "count", "findings of the probe of level problem"),
    spec("cluster.device_memory_known", "boolean", "", "whether the memory of every device is known"),
    spec(
        "cluster.memory_in_use_fraction",
        "number",
        "fraction",
        "share of a GPU's memory that something else holds now (worst device class)",
    ),
)
PRECISIONS = ("bf16", "fp16", "tf32", "fp32")


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    cluster, profile = context.cluster, context.profile
    classes = cluster.classes
    how: Origin = "declared" if profile.source == "declared" else "reported"
    yield known("cluster.num_devices", cluster.num_devices, how)
    yield known("cluster.num_nodes", cluster.num_nodes, how)
    yield known("cluster.num_node_classes", len(classes), how)
    yield known("cluster.devices_per_node_equal", len({c.devices_per_node for c in classes}) <= 1, how)
    yield known("cluster.mixed_devices", len({c.device.name for c in classes}) > 1, how)
    kinds = sorted({c.device.kind for c in classes})
    if kinds:
        yield known("cluster.device_kind", kinds[0] if len(kinds) == 1 else "mixed", how)
    else:
        yield unknown("cluster.device_kind", "there is no usable device")
    yield speed_spread(cluster)
    yield _speed_variation(cluster)
    yield _slow_device(context)
    unhealthy = sum(node.count for node in profile.nodes for d in node.devices if d.healthy is False)
    yield known("cluster.num_unhealthy_devices", unhealthy, how)
    yield known("cluster.num_problems", sum(v.level == "problem" for v in profile.verdicts), how)
    yield known("cluster.device_memory_known", all(c.device.usable_memory_bytes is not None for c in classes), how)
    yield _memory_in_use(cluster)


def speed_spread(cluster: Cluster) -> Fact:
    """Return fastest over slowest, in a precision that all devices know from one kind of source.

    Measured rates are compared with measured ones and catalog peaks with catalog peaks, never one with the other.
    """
    name = "cluster.speed_spread"
    devices = [c.device for c in cluster.classes]
    if not devices:
        return unknown(name, "there is no usable device")
    if len(devices) == 1:
        return known(name, 1.0, "estimated", "all nodes are alike")
    shared = [p for p in PRECISIONS if all(p in d.supports for d in devices)]
    order = (*shared, *(p for p in PRECISIONS if p not in shared))
    for origin, rates in (
        ("measured", [d.measured_flops_per_second for d in devices]),
        ("catalog", [d.peak_flops_per_second for d in devices]),
    ):
        for precision in order:
            values = [r[precision] for r in rates if r.get(precision, 0.0) > 0]
            if len(values) == len(devices):
                because = f"{precision} rates, {origin}"
                return known(name, max(values) / min(values), origin, because)  # type: ignore[arg-type]
    lacking = next((d.name for d in devices if not _has_rate(d)), devices[0].name)
    return unknown(name, f"no arithmetic rate of {lacking} is known in a precision that the others share")


def _has_rate(device: Device) -> bool:
    return bool(device.measured_flops_per_second or device.peak_flops_per_second)


def _speed_variation(cluster: Cluster) -> Fact:
    name = "cluster.speed_variation"
    found = [(c.speed_variation, c) for c in cluster.classes if c.speed_variation is not None]
    if not found:
        return unknown(name, "speed over time was not measured")
    worst, at = max(found, key=lambda pair: pair[0])
    origin = worst_origin([at.origins.get("speed_variation", "measured")])
    missing = len(cluster.classes) - len(found)
    return known(name, worst, origin, f"on {at.name}" + (f"; {missing} classes not measured" if missing else ""))


def _slow_device(context: Context) -> Fact:
    name = "cluster.slow_device_ratio"
    worst: tuple[float, str] | None = None
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for node in context.profile.nodes:
        for device in node.devices:
            for precision, reading in device.matmul_flops_per_second.items():
                if reading.origin == "measured" and reading.value and device.healthy is not False:
                    place = f"{node.hostname} device {device.index}"
                    groups.setdefault((device.name, precision), []).append((reading.value, place))
    for rates in groups.values():
        low, place = min(rates)
        ratio = median(rate for rate, _ in rates) / low
        if worst is None or ratio > worst[0]:
            worst = ratio, place
    if worst is None:
        return unknown(name, "no arithmetic rate was measured")
    return known(name, worst[0], "measured", f"slowest: {worst[1]}")


def _memory_in_use(cluster: Cluster) -> Fact:
    name = "cluster.memory_in_use_fraction"
    shares: list[tuple[float, str]] = []
    for node_class in cluster.classes:
        device = node_class.device
        if device.kind == "cpu":
            continue
        if device.memory_free_bytes is None or not device.memory_total_bytes:
            return unknown(name, f"free memory of {device.name} is not known")
        shares.append((max(0.0, 1 - device.memory_free_bytes / device.memory_total_bytes), device.name))
    if not shares:
        return unknown(name, "a CPU's memory is the host's")
    worst, at = max(shares)
    return known(name, worst, "reported", f"on {at}")
