"""Which devices take part: all, only the fast classes, fewer nodes, fewer devices. Few, whatever the cluster's size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stratadvisor.costs.memo import Memo
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import ClassShare
from stratadvisor.strategies.batches import divisors

MAX_CLASSES_TRIED = 6
"""Prefixes of the classes by speed, and single classes, are tried for the fastest so many."""
MAX_HALVINGS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Part of a cluster."""

    name: str
    """Empty for the whole cluster; else "8xA100-80GB only", "2 of 4 nodes of 8xA100-80GB"."""
    cluster: Cluster

    @property
    def uniform(self) -> bool:
        """Whether all devices are of one class."""
        return len(self.cluster.classes) == 1


def device_rate(node_class: NodeClass) -> float:
    """Return FLOP/s to sort classes by: the best measured rate, else the best dense peak; 0 when neither is known.

    Only for order: shares are computed from predicted times of the model at hand.
    """
    device = node_class.device
    rates = device.measured_flops_per_second or device.peak_flops_per_second
    return max((r for name, r in rates.items() if name != "fp8"), default=0.0)


def selections(cluster: Cluster) -> list[Selection]:
    """Return the whole cluster first, then parts of it: fast classes, single classes, fewer nodes, fewer devices."""
    found: dict[tuple[tuple[str, int, int], ...], Selection] = {}

    def add(name: str, part: Cluster) -> None:
        key = tuple((c.name, c.num_nodes, c.devices_per_node) for c in part.classes)
        found.setdefault(key, Selection(name=name, cluster=part))

    add("", cluster)
    ordered = sorted(cluster.classes, key=lambda c: (-device_rate(c), c.name))
    for length in range(len(ordered) - 1, 0, -1):
        if length <= MAX_CLASSES_TRIED:
            chosen = tuple(c.name for c in ordered[:length])
            add(f"{' and '.join(chosen)} only", part_of(cluster, chosen))
    for node_class in ordered[:MAX_CLASSES_TRIED]:
        add(f"{node_class.name} only", part_of(cluster, (node_class.name,)))
        for nodes, per_node in _fewer(node_class):
            add(_name_of(node_class, nodes, per_node), fewer_of(cluster, node_class, nodes, per_node))
    return list(found.values())


def spanning(cluster: Cluster, limit: int = 3) -> list[Selection]:
    """Return the largest selections of several nodes, or of one node where there is only one.

    For methods that save exchanges: inside one node of a larger cluster there are none worth saving.
    """
    nodes = min(2, cluster.num_nodes)
    return [s for s in selections(cluster) if s.cluster.num_nodes >= nodes][:limit]


def single_devices(cluster: Cluster) -> list[Selection]:
    """Return one device of each class, fastest first."""
    ordered = sorted(cluster.classes, key=lambda c: (-device_rate(c), c.name))[:MAX_CLASSES_TRIED]
    return [
        Selection(
            name="" if cluster.num_devices == 1 else f"one {c.device.name}",
            cluster=fewer_of(cluster, c, 1, 1),
        )
        for c in ordered
    ]


def nearest_sharing(selection: Selection, global_batch_size: int, *, together: int = 1) -> Selection | None:
    """Return the largest part of a uniform selection whose devices share a batch equally; None if it is not uniform.

    With ``together`` devices for the same sequences, whole nodes only; None where none of them can.
    """
    if not selection.uniform:
        return None
    node_class = selection.cluster.classes[0]
    if together > 1:
        return _whole_nodes_sharing(selection, global_batch_size, together)
    if global_batch_size % node_class.num_devices == 0:
        return selection
    best = (0, 0, 0)
    for devices in divisors(global_batch_size):
        # whole nodes first: as many devices on each, on fewer nodes
        for per_node in divisors(devices):
            nodes = devices // per_node
            if per_node <= node_class.devices_per_node and nodes <= node_class.num_nodes:
                best = max(best, (devices, per_node, nodes))
    _, per_node, nodes = best
    return Selection(
        name=_name_of(node_class, nodes, per_node),
        cluster=fewer_of(selection.cluster, node_class, nodes, per_node),
    )


def _whole_nodes_sharing(selection: Selection, global_batch_size: int, together: int) -> Selection | None:
    node_class = selection.cluster.classes[0]
    for workers in reversed(divisors(global_batch_size)):
        nodes, rest = divmod(workers * together, node_class.devices_per_node)
        if rest == 0 and 0 < nodes <= node_class.num_nodes:
            part = fewer_of(selection.cluster, node_class, nodes, node_class.devices_per_node)
            return Selection(name=_name_of(node_class, nodes, node_class.devices_per_node), cluster=part)
    return None


def part_of(cluster: Cluster, names: tuple[str, ...]) -> Cluster:
    """Return the named classes, with the network they have among themselves."""
    part = cluster.only(names)
    return replace(part, inter_node_bytes_per_second=_network(cluster, part.classes))


def fewer_of(cluster: Cluster, node_class: NodeClass, nodes: int, per_node: int) -> Cluster:
    """Return ``nodes`` nodes of one class with ``per_node`` devices each."""
    kept = replace(node_class, num_nodes=nodes, devices_per_node=per_node, hostnames=node_class.hostnames[:nodes])
    return replace(cluster, classes=(kept,), inter_node_bytes_per_second=_network(cluster, (kept,)))


def _network(cluster: Cluster, kept: tuple[NodeClass, ...]) -> float | None:
    """Return the rate between the kept nodes: without the slowest nodes it may be higher, unless it was measured."""
    rates = [c.network_bytes_per_second for c in kept]
    if cluster.inter_node_sweep or cluster.inter_node_bytes_per_second is None or None in rates:
        return cluster.inter_node_bytes_per_second
    every = [c.network_bytes_per_second for c in cluster.classes]
    if None in every or cluster.inter_node_bytes_per_second < min(r for r in every if r is not None):
        return cluster.inter_node_bytes_per_second  # the fabric, not the nodes' own ports, sets it
    return min(r for r in rates if r is not None)


def _fewer(node_class: NodeClass) -> Iterator[tuple[int, int]]:
    nodes = node_class.num_nodes
    power = 1 << (nodes.bit_length() - 1)
    if 1 < power < nodes:  # batches are powers of two: a fifth node must not be worse than none
        yield power, node_class.devices_per_node
    for _ in range(MAX_HALVINGS):
        nodes //= 2
        if nodes <= 1:
            break
        yield nodes, node_class.devices_per_node
    if node_class.num_nodes > 1:
        yield 1, node_class.devices_per_node
    per_node = node_class.devices_per_node
    for _ in range(MAX_HALVINGS):
        per_node //= 2
        if per_node <= 1:
            break
        yield 1, per_node


def _name_of(node_class: NodeClass, nodes: int, per_node: int) -> str:
    if per_node == node_class.devices_per_node:
        return f"{nodes} of {node_class.num_nodes} nodes of {node_class.name}"
    devices = f"{per_node} of {node_class.devices_per_node} devices"
    where = "" if node_class.num_nodes == 1 else f" on {nodes} of {node_class.num_nodes} nodes"
    return f"{devices}{where} of {node_class.name}"


def part_used(cluster: Cluster, used: Sequence[ClassShare]) -> Cluster:
    """Return the part of a cluster that a candidate's shares take, classes in the order of the shares."""
    key = tuple((s.node_class, s.num_nodes, s.devices_per_node) for s in used)
    return _PARTS.get((cluster,), key, lambda: _part_used(cluster, key))


_PARTS: Memo[Cluster] = Memo(4096)
"""Hundreds of candidates on a few parts; what is remembered of a part's classes is remembered by identity as well."""


def _part_used(cluster: Cluster, used: tuple[tuple[str, int, int], ...]) -> Cluster:
    classes = {c.name: c for c in cluster.classes}
    kept = tuple(
        replace(
            classes[name],
            num_nodes=nodes,
            devices_per_node=per_node,
            hostnames=classes[name].hostnames[:nodes],
        )
        for name, nodes, per_node in used
    )
    return replace(cluster, classes=kept, inter_node_bytes_per_second=_network(cluster, kept))
