"""Profile -> planning view: alike nodes become one class, unknowns stay None, every value keeps its origin.

Nodes are alike when they have as many devices of the same name and memory and, where it was measured, speeds within
``SPEED_GAP`` of each other, or within what they vary by, speeds that all change in phases or all do not, and measured
connections to others of a like rate. A class is planned with the speed of its median node and the memory of its
tightest one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from stratadvisor.catalog import devices as device_catalog
from stratadvisor.costs.constants import PCIE_COLLECTIVE_SHARE
from stratadvisor.derive.drivers import peer_access_defect
from stratadvisor.schema.base import Origin, Reading
from stratadvisor.schema.cluster import Cluster, Device, NodeClass
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    DeviceProfile,
    NicProfile,
    NodeProfile,
    SpeedOverTime,
)

SPEED_GAP = 0.07
"""Neighbours in sorted speed further apart than this start a new class; probes of one card repeat within 2 to 5 %."""
UNSTEADY_GAP = 0.25
"""Nodes that vary over time as much as they differ are one class, up to this difference."""
NETWORK_GAP = 0.5
"""The same for measured connections of nodes: rates of healthy ones repeat within 10 %, slow ones are far below."""

NCCL_INTRA_LATENCY_SECONDS, NCCL_INTER_LATENCY_SECONDS = 35e-6, 50e-6
SOCKET_BYTES_PER_SECOND = 2.5e9
"""What a collective over TCP reaches where the line is faster: its copies keep cores busy (estimated: iperf over 40
Gb/s gave 2.03 GB/s and the collective 0.92 in DeepSpeed issue 5766)."""
GLOO_INTRA_LATENCY_SECONDS, GLOO_INTER_LATENCY_SECONDS = 100e-6, 300e-6
"""Used where no sweep was measured; small all-reduces of published nccl-tests runs over 8 devices take 25 to 45 us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningView:
    """The cluster to plan for, and what was assumed to get it."""

    cluster: Cluster
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    members: dict[str, tuple[NodeProfile, ...]]
    """Class name -> its nodes in the profile."""


@dataclass(frozen=True, slots=True)
class _Node:
    profile: NodeProfile
    devices: tuple[DeviceProfile, ...]
    kinds: frozenset[tuple[str, int | None]]
    speed: float | None
    over_time: SpeedOverTime | None


def planning_cluster(profile: ClusterProfile) -> Cluster:
    """Return the planning view of a profile."""
    return planning_view(profile).cluster


def planning_view(profile: ClusterProfile) -> PlanningView:
    """Return the planning view of a profile with the assumptions it rests on."""
    assumptions: list[str] = []
    warnings: list[str] = []
    nodes: list[_Node] = []
    for node in profile.nodes:
        usable = tuple(d for d in node.devices if d.healthy is not False)
        warnings += [
            f"{node.hostname} device {d.index} ({d.name}) is left out: {d.health_reason or 'it does not answer'}"
            for d in node.devices
            if d.healthy is False
        ]
        if not usable:
            warnings.append(f"{node.hostname} has no usable device and is left out")
            continue
        kinds = frozenset(map(_kind_of, usable))
        if len(kinds) > 1:
            names = ", ".join(sorted({d.name for d in usable}))
            warnings.append(
                f"{node.hostname} mixes devices ({names}); it is planned as if all were its weakest one:"
                " start separate jobs, or hide some with CUDA_VISIBLE_DEVICES, to use them fully"
            )
        nodes.append(_Node(node, usable, kinds, _slowest_speed(usable), _least_steady(usable)))
    warnings += _changing(nodes)
    sweeps = {s: best_sweep(profile, s) for s in ("intra_node", "inter_node")}
    backend = "gloo" if any(d.kind == "cpu" for n in nodes for d in n.devices) else "nccl"
    groups = _group(nodes)
    classes = _with_processor_shares(
        tuple(_node_class(group, groups, sweeps["intra_node"], backend, assumptions) for group in groups)
    )
    inter, inter_origin = _inter_node_rate(nodes, sweeps["inter_node"], assumptions)
    inter_sweep, intra_sweep = sweeps["inter_node"], sweeps["intra_node"]
    latency = NCCL_INTER_LATENCY_SECONDS if backend == "nccl" else GLOO_INTER_LATENCY_SECONDS
    if inter_sweep is not None and inter_sweep.latency_seconds.value is not None:
        latency = inter_sweep.latency_seconds.value
    cluster = Cluster(
        name=profile.name or "cluster",
        classes=classes,
        inter_node_bytes_per_second=inter,
        inter_node_latency_seconds=latency,
        backend=backend,  # type: ignore[arg-type]  # the two literals above
        intra_node_sweep=_points(intra_sweep),
        intra_node_sweep_ranks=intra_sweep.world_size if intra_sweep else 0,
        inter_node_sweep=_points(inter_sweep),
        inter_node_sweep_ranks=inter_sweep.world_size if inter_sweep else 0,
        calibration_time_ratios={(c.device, c.strategy): c.time_ratio for c in profile.calibrations},
        calibration_memory_ratios={
            (c.device, c.strategy): c.memory_ratio for c in profile.calibrations if c.memory_ratio is not None
        },
        origins={"inter_node_bytes_per_second": inter_origin},
    )
    members = {c.name: tuple(n.profile for n in group) for c, group in zip(classes, groups, strict=True)}
    return PlanningView(cluster=cluster, assumptions=tuple(assumptions), warnings=tuple(warnings), members=members)


MOST_NAMED = 8


def _changing(nodes: list[_Node]) -> list[str]:
    """Return a line for each of the first nodes whose speed changes, and what is assumed of several."""
    changing = [(n.profile.hostname, n.over_time) for n in nodes if n.over_time is not None]
    said = [f"{name} {over.in_words}; plans take it to go on" for name, over in changing[:MOST_NAMED]]
    if len(changing) > MOST_NAMED:
        said.append(f"the speed of {len(changing) - MOST_NAMED} more nodes changes like this")
    if len(changing) > 1:
        said.append("nodes whose speed changes are taken to do so independently of each other")
    return said


def _least_steady(devices: tuple[DeviceProfile, ...]) -> SpeedOverTime | None:
    """Return how the speed of the device changes whose slowest level is lowest; None where all are steady."""
    found = [d.speed_over_time for d in devices if d.speed_over_time is not None]
    return min(found, key=_lowest, default=None)


def _lowest(over: SpeedOverTime) -> float:
    return min(level.relative_speed for level in over.levels)


def _with_processor_shares(classes: tuple[NodeClass, ...]) -> tuple[NodeClass, ...]:
    """Return the classes with what ranks on processors get of them.

    Where the same processor multiplies at half the rate, something else has half of its time (a quota of another
    container, a neighbour), and everything that runs on it takes twice as long, not only products.
    """
    rates = [c.device.measured_flops_per_second.get("fp32") if c.device.kind == "cpu" else None for c in classes]
    best: dict[str, float] = {}
    for c, rate in zip(classes, rates, strict=True):
        best[c.device.name] = max(rate or 0.0, best.get(c.device.name, 0.0))
    return tuple(
        c if rate is None else replace(c, processor_share=rate / best[c.device.name])
        for c, rate in zip(classes, rates, strict=True)
    )


def _kind_of(device: DeviceProfile) -> tuple[str, int | None]:
    total = device.memory_total_bytes.value
    return (device.catalog_key or device.name, None if total is None else round(total / 2**30))


def _slowest_speed(devices: tuple[DeviceProfile, ...]) -> float | None:
    """Return the lowest best measured rate (any precision that all devices have); None when not measured."""
    for precision in ("bf16", "fp16", "tf32", "fp32"):
        readings = [d.matmul_flops_per_second.get(precision) for d in devices]
        known = [r.value for r in readings if r is not None and r.value is not None]
        if len(known) == len(readings):
            return min(known)
    return None


def _group(nodes: list[_Node]) -> list[list[_Node]]:
    """Return alike nodes together, in order of first appearance."""
    by_kind: dict[object, list[_Node]] = {}
    for node in nodes:
        key = (node.kinds, len(node.devices), _declared_rates(node.profile), node.over_time is None)
        by_kind.setdefault(key, []).append(node)
    groups: list[list[_Node]] = []
    for alike in by_kind.values():
        unmeasured = [n for n in alike if n.speed is None]
        by_speed = sorted((n for n in alike if n.speed is not None), key=lambda n: n.speed or 0.0)
        current: list[_Node] = []
        for node in by_speed:
            if current and (node.speed or 0.0) > (current[-1].speed or 0.0) * (1 + _gap(current[-1], node)):
                groups.append(current)
                current = []
            current.append(node)
        groups += [g for g in (current, unmeasured) if g]
    return [part for group in groups for part in _by_network(group)]


def _by_network(group: list[_Node]) -> list[list[_Node]]:
    """Return the nodes of a class apart whose measured connections differ: one slow link shall not be everybody's."""
    rates = [n.profile.network_bytes_per_second for n in group]
    if any(r.origin != "measured" for r in rates):
        return [group]
    parts: list[list[_Node]] = []
    last = 0.0
    for rate, node in sorted(
        ((r.value or 0.0, n) for r, n in zip(rates, group, strict=True)), key=lambda pair: pair[0]
    ):
        if not parts or rate > last * (1 + NETWORK_GAP):
            parts.append([])
        parts[-1].append(node)
        last = rate
    return parts


def _gap(one: _Node, other: _Node) -> float:
    """Return how far apart two nodes of one class may be: measured speeds are no better than they are steady."""
    readings = (one.profile.speed_variation, other.profile.speed_variation)
    variation = max((r.value or 0.0 for r in readings if r.origin == "measured"), default=0.0)
    return max(SPEED_GAP, min(UNSTEADY_GAP, variation))


def _declared_rates(node: NodeProfile) -> tuple[float | None, ...]:
    """Return what a hand-written cluster says about a node's links; measured rates vary and do not split classes."""
    return tuple(
        r.value if r.origin == "declared" else None
        for r in (node.network_bytes_per_second, node.intra_node_bytes_per_second, node.speed_variation)
    )


def _tightest(readings: list[Reading]) -> tuple[float | None, Origin]:
    """Return the smallest value and its origin; unknown when any is unknown."""
    values = [r.value for r in readings]
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None, "unknown"
    low = min(known)
    return low, readings[values.index(low)].origin


def _middle(readings: list[Reading]) -> tuple[float | None, Origin]:
    values = [r.value for r in readings]
    known = [v for v in values if v is not None]
    if not known:
        return None, "unknown"
    return median(known), readings[values.index(known[0])].origin


def _device(group: list[_Node]) -> Device:
    members = [d for node in group for d in node.devices]
    weakest = min(members, key=lambda d: (d.memory_total_bytes.value or float("inf"), d.index))
    spec = device_catalog.lookup(weakest.catalog_key or weakest.name)
    origins: dict[str, Origin] = {}
    total, origins["memory_total_bytes"] = _tightest([d.memory_total_bytes for d in members])
    if total is None and spec is not None and weakest.unified_memory is not True and weakest.mig_enabled is not True:
        total, origins["memory_total_bytes"] = spec.memory_bytes, "catalog"
    free, origins["memory_free_bytes"] = _tightest([d.memory_free_bytes for d in members])
    precisions = set(members[0].matmul_flops_per_second)
    for other in members:  # one by one: ten thousand nodes would be as many sets at once
        precisions.intersection_update(other.matmul_flops_per_second)
    measured: dict[str, float] = {}
    for precision in sorted(precisions):
        rate, origin = _middle([d.matmul_flops_per_second[precision] for d in members])
        if rate is not None:
            measured[precision] = rate
            origins[f"matmul_{precision}_flops_per_second"] = origin
    peaks: dict[str, float] = {str(k): v for k, v in spec.peak_flops_per_second.items()} if spec else {}
    if weakest.mig_enabled and weakest.mig_profile:
        peaks = {}  # a slice has an unlisted share of the card's units
    if weakest.kind == "cpu":
        peaks = dict(measured)
    bandwidth, origins["memory_bandwidth_bytes_per_second"] = _middle(
        [d.memory_bandwidth_bytes_per_second for d in members]
    )
    if bandwidth is None and spec is not None and not weakest.mig_enabled:
        bandwidth = spec.memory_bandwidth_bytes_per_second
        origins["memory_bandwidth_bytes_per_second"] = "catalog"
    host_link, origins["host_link_bytes_per_second"] = _tightest([d.host_to_device_bytes_per_second for d in members])
    if host_link is None and spec is not None:
        host_link, origins["host_link_bytes_per_second"] = spec.host_link_bytes_per_second, "catalog"
    operation, origins["operation_seconds"] = _middle([d.operation_seconds for d in members])
    power, origins["power_watts"] = _middle([d.power_limit_watts for d in members if d.power_limit_watts.value != 0])
    if power is None and spec is not None:
        power, origins["power_watts"] = spec.power_watts, "catalog"
    capability = weakest.compute_capability or (spec.compute_capability if spec else None)
    return Device(
        name=weakest.name,
        catalog_key=weakest.catalog_key or (spec.key if spec else None),
        kind=weakest.kind,
        architecture="cpu" if weakest.kind == "cpu" else (spec.architecture if spec else "unknown"),
        memory_total_bytes=total,
        memory_free_bytes=free,
        peak_flops_per_second=peaks,
        measured_flops_per_second=measured,
        memory_bandwidth_bytes_per_second=bandwidth,
        host_link_bytes_per_second=host_link,
        power_watts=power,
        compute_capability=capability,
        supports=_supports(weakest, spec, measured, capability),
        matmul_by_size=weakest.matmul_by_size,
        operation_seconds=operation or None,
        origins=origins,
    )


def _supports(
    device: DeviceProfile,
    spec: device_catalog.DeviceSpec | None,
    measured: dict[str, float],
    capability: tuple[int, int] | None,
) -> frozenset[str]:
    found = {"fp32", *measured}
    if spec is not None:
        found |= {str(p) for p in spec.supports}
    elif capability is not None and device.kind == "cuda":
        # CUDA C++ Programming Guide, arithmetic throughput: fp16 matrix units from 7.0, bf16 from 8.0
        found |= {"fp16"} if capability >= (7, 0) else set()
        found |= {"bf16", "tf32"} if capability >= (8, 0) else set()
        found |= {"fp8"} if capability >= (8, 9) else set()
    return frozenset(found)


def _node_class(
    group: list[_Node],
    groups: list[list[_Node]],
    sweep: CollectiveSweep | None,
    backend: str,
    assumptions: list[str],
) -> NodeClass:
    first = group[0].profile
    device = _device(group)
    origins: dict[str, Origin] = {}
    count = len(group[0].devices)
    intra, origins["intra_node_bytes_per_second"], nvlink = _intra_node_rate(group, device, sweep, assumptions)
    latency = NCCL_INTRA_LATENCY_SECONDS if backend == "nccl" else GLOO_INTRA_LATENCY_SECONDS
    if sweep is not None and sweep.latency_seconds.value is not None:
        latency = sweep.latency_seconds.value
    network, origins["network_bytes_per_second"] = _tightest([_network(n.profile) for n in group])
    cores, origins["cpu_cores"] = _tightest([n.profile.cpu.usable_cores for n in group])
    host, origins["host_memory_bytes"] = _tightest([_host_memory(n.profile) for n in group])
    bandwidth, origins["host_memory_bandwidth_bytes_per_second"] = _tightest(
        [n.profile.host_memory.bandwidth_bytes_per_second for n in group]
    )
    shm, origins["shared_memory_bytes"] = _tightest([n.profile.host_memory.shared_memory_free_bytes for n in group])
    variation, origins["speed_variation"] = _middle([n.profile.speed_variation for n in group])
    changing = sorted((n.over_time for n in group if n.over_time is not None), key=_lowest)
    usual = changing[len(changing) // 2] if changing else None
    reads = [s.read_bytes_per_second for n in group for s in n.profile.storage]
    storage, origins["storage_read_bytes_per_second"] = _tightest(reads)
    item, origins["data_item_seconds"] = _middle([n.profile.data_feed.item_seconds for n in group])
    return NodeClass(
        name=_class_name(group, groups, device),
        num_nodes=sum(n.profile.count for n in group),
        devices_per_node=count,
        device=device,
        intra_node_bytes_per_second=intra,
        intra_node_latency_seconds=latency,
        network_bytes_per_second=network,
        cpu_cores=cores,
        host_memory_bytes=host,
        host_memory_bandwidth_bytes_per_second=bandwidth,
        shared_memory_bytes=shm,
        nvlink=nvlink,
        peer_access=nvlink is True or not _staged(group),
        speed_variation=variation,
        speed_levels=() if usual is None else usual.shares,
        speed_phase_seconds=0.0 if usual is None else usual.phase_seconds,
        storage_read_bytes_per_second=storage,
        data_item_seconds=item,
        hostnames=tuple(n.profile.hostname for n in group) if first.count == 1 else (),
        origins=origins,
    )


def _class_name(group: list[_Node], groups: list[list[_Node]], device: Device) -> str:
    """Return ``8xA100-80GB``, with a number where two classes would share the name."""

    def plain(members: list[_Node]) -> str:
        one = members[0].devices[0]
        return f"{len(members[0].devices)}x{one.catalog_key or one.name}"

    name = f"{len(group[0].devices)}x{device.catalog_key or device.name}"
    same = [g for g in groups if plain(g) == plain(group)]
    return name if len(same) == 1 else f"{name} #{next(i for i, g in enumerate(same, 1) if g is group)}"


def _network(node: NodeProfile) -> Reading:
    """Return a node's network rate: measured or declared, else the fastest interface that is up, as reported.

    An interface whose RDMA this process cannot open carries sockets at best (verdict ``rdma``).
    """
    if node.network_bytes_per_second.known:
        return node.network_bytes_per_second
    real = [n for n in node.nics if n.up and n.kind not in ("loopback", "virtual") and n.rate_bytes_per_second.known]
    ethernet = [n for n in real if not (n.kind == "infiniband" and n.rdma_usable is False)]
    rates = [_usable_rate(n) for n in ethernet or real]
    if not rates:
        return node.network_bytes_per_second
    return max(rates, key=lambda r: r.value or 0.0)


def _usable_rate(nic: NicProfile) -> Reading:
    rate = nic.rate_bytes_per_second
    if nic.rdma_usable is not False or rate.value is None or rate.value <= SOCKET_BYTES_PER_SECOND:
        return rate
    detail = f"sockets over {nic.name}, whose RDMA cannot be opened here"
    return Reading(value=SOCKET_BYTES_PER_SECOND, origin="estimated", detail=detail)


def _host_memory(node: NodeProfile) -> Reading:
    memory = node.host_memory
    available, limit = memory.available_bytes, memory.limit_bytes
    if available.value is None:
        return limit if limit.known else memory.total_bytes
    return limit if limit.value is not None and limit.value < available.value else available


def _staged(group: list[_Node]) -> bool:
    """Whether devices of a node cannot reach each other's memory, or must not because their driver is wrong."""
    blocked = any(link.peer_access is False for node in group for link in node.profile.links)
    return blocked or any(peer_access_defect(n.profile) for n in group)


def _intra_node_rate(
    group: list[_Node], device: Device, sweep: CollectiveSweep | None, assumptions: list[str]
) -> tuple[float | None, Origin, bool | None]:
    links = [link for node in group for link in node.profile.links]
    kinds = {link.kind for link in links}
    nvlink: bool | None = None
    if kinds:
        # one pair without NVLink makes every ring cross PCIe
        nvlink = kinds <= {"nvlink", "nvswitch"}
    declared, origin = _tightest([n.profile.intra_node_bytes_per_second for n in group])
    if declared is not None:
        return declared, origin, nvlink
    if len(group[0].devices) == 1:
        return None, "unknown", nvlink
    if sweep is not None and sweep.bus_bandwidth_bytes_per_second.value is not None:
        return sweep.bus_bandwidth_bytes_per_second.value, "measured", nvlink
    spec = device_catalog.lookup(device.catalog_key or device.name)
    if spec is None:
        return None, "unknown", nvlink
    if spec.link_bytes_per_second is not None and nvlink is not False:
        if nvlink is None:
            assumptions.append(f"the {device.name} cards of a node are all joined by NVLink, as this card usually is")
        return spec.link_bytes_per_second, "catalog", True
    if spec.host_link_bytes_per_second is None:
        return None, "unknown", nvlink
    if _staged(group):
        assumptions.append(
            f"{device.name} cards of a node cannot reach each other's memory: collectives cross host memory, at half of"
            f" PCIe's {PCIE_COLLECTIVE_SHARE:.0%}"
        )
        return spec.host_link_bytes_per_second * PCIE_COLLECTIVE_SHARE / 2, "estimated", False
    assumptions.append(
        f"collectives inside a node of {device.name} cards cross PCIe at {PCIE_COLLECTIVE_SHARE:.0%} of the link's rate"
    )
    return spec.host_link_bytes_per_second * PCIE_COLLECTIVE_SHARE, "estimated", False


def best_sweep(profile: ClusterProfile, scope: str) -> CollectiveSweep | None:
    """Return the all-reduce among most ranks, of several such (two interfaces, say) the fastest; None: not timed."""
    found = [s for s in profile.collectives if s.scope == scope and s.operation == "all_reduce" and s.points]
    return max(found, key=lambda s: (s.world_size, s.bus_bandwidth_bytes_per_second.value or 0.0), default=None)


def _points(sweep: CollectiveSweep | None) -> tuple[tuple[float, float], ...]:
    if sweep is None:
        return ()
    return tuple(sorted((float(p.message_bytes), p.seconds) for p in sweep.points))


def _inter_node_rate(
    nodes: list[_Node], sweep: CollectiveSweep | None, assumptions: list[str]
) -> tuple[float | None, Origin]:
    if sum(n.profile.count for n in nodes) < 2:
        return None, "unknown"
    if sweep is not None and sweep.bus_bandwidth_bytes_per_second.value is not None:
        return sweep.bus_bandwidth_bytes_per_second.value, "measured"
    rate, origin = _tightest([_network(n.profile) for n in nodes])
    if rate is None:
        assumptions.append("the rate between nodes is unknown; give --inter-node, or probe all nodes together")
    elif origin == "reported":
        assumptions.append("the rate between nodes is what the interfaces report, not what was measured")
    return rate, origin
