"""Seconds of collectives: measured sweeps where the cluster has them, else latency plus bytes over bandwidth.

Across nodes the all-reduce is hierarchical: reduce-scatter inside each node, all-reduce across nodes on each rank's
part, all-gather inside. All ranks of a node share its network. A ring of n moves 2 (n-1)/n of the message per rank.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from stratadvisor.costs import constants as fitted
from stratadvisor.schema.cluster import Cluster, NodeClass

_SWEEP_MARGIN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate: ``ranks_per_node`` on each of ``num_nodes``."""

    num_nodes: int
    ranks_per_node: int
    groups_per_node: int = 1
    """Groups of this kind that use a node's network at the same time (one per tensor-parallel rank, for example)."""

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return self.num_nodes * self.ranks_per_node


def intra_node_bandwidth(cluster: Cluster) -> tuple[float, str]:
    """Return bytes per second inside the slowest node, and the assumption it rests on, if any."""
    rates: list[float] = []
    assumption = ""
    for node_class in cluster.classes:
        if node_class.devices_per_node < 2:
            continue
        rate, note = _class_bandwidth(node_class)
        rates.append(rate)
        assumption = assumption or note
    return (min(rates), assumption) if rates else (fitted.ASSUMED_INTRA_PCIE, "")


def _class_bandwidth(node_class: NodeClass) -> tuple[float, str]:
    rate = node_class.intra_node_bytes_per_second
    if rate is None:
        note = (
            f"the bandwidth inside a node of {node_class.name} is unknown; {fitted.ASSUMED_INTRA_PCIE / 1e9:.0f} GB/s"
        )
        return fitted.ASSUMED_INTRA_PCIE, f"{note} is assumed"
    origin = node_class.origins.get("intra_node_bytes_per_second", "declared")
    return (rate if origin in ("measured", "estimated") else rate * fitted.DECLARED_INTRA_SHARE), ""


def inter_node_bandwidth(cluster: Cluster) -> tuple[float, str]:
    """Return bytes per second between nodes, per node, and the assumption it rests on, if any."""
    rate = cluster.inter_node_bytes_per_second
    if rate is None:
        assumed = fitted.ASSUMED_INTER_NODE
        return assumed, f"the bandwidth between nodes is unknown; {assumed / 1e9:.0f} GB/s per node is assumed"
    origin = cluster.origins.get("inter_node_bytes_per_second", "declared")
    return (rate if origin in ("measured", "estimated") else rate * fitted.DECLARED_NETWORK_SHARE), ""


def _latency_growth(ranks: int, base_ranks: int, backend: str) -> float:
    """Return how an empty collective's time grows from ``base_ranks``: tree over NCCL, ring over gloo."""
    if backend == "gloo":
        return max(1.0, (ranks - 1) / max(1, base_ranks - 1))
    return max(1.0, math.log2(max(2, ranks)) / math.log2(max(2, base_ranks)))


def _ring(ranks: int) -> float:
    return 2.0 * (ranks - 1) / ranks


def _interpolate_sweep(sweep: tuple[tuple[float, float], ...], message_bytes: float) -> float:
    """Return seconds for a message: log-log between points, constant below the first, in proportion above the last."""
    first, last = sweep[0], sweep[-1]
    if message_bytes <= first[0]:
        return first[1]
    if message_bytes >= last[0]:
        return last[1] * message_bytes / last[0]
    i = bisect_left(sweep, (message_bytes, 0.0))
    (x0, y0), (x1, y1) = sweep[i - 1], sweep[i]
    if x1 - x0 <= _SWEEP_MARGIN:
        return max(y0, y1)
    weight = math.log(message_bytes / x0) / math.log(x1 / x0)
    return math.exp(math.log(y0) * (1 - weight) + math.log(y1) * weight)


def _stage(
    message_bytes: float,
    ranks: int,
    *,
    bandwidth: float,
    latency: float,
    base_ranks: int,
    sweep: tuple[tuple[float, float], ...],
    backend: str,
) -> float:
    """Return the all-reduce time of one level of the hierarchy."""
    if ranks < 2 or message_bytes <= 0:
        return 0.0
    growth = _latency_growth(ranks, base_ranks, backend)
    if sweep and base_ranks >= 2:
        timed = _interpolate_sweep(sweep, message_bytes)
        fixed = min(sweep[0][1], timed)
        return fixed * growth + (timed - fixed) * _ring(ranks) / _ring(base_ranks)
    return latency * growth + _ring(ranks) * message_bytes / bandwidth


def _ramp_seconds(message_bytes: float, ranks: int, bandwidth: float) -> float:
    """Return what a message loses to the protocols for small ones."""
    half = fitted.NVLINK_HALF_MESSAGE_BYTES
    most = min(fitted.NVLINK_RAMP_SECONDS, _ring(ranks) * half / bandwidth)
    return most * message_bytes / (message_bytes + half)


def all_reduce_seconds(message_bytes: float, group: Group, cluster: Cluster) -> float:
    """Return the time to sum ``message_bytes`` over the group, every rank holding the sum."""
    if group.size < 2 or message_bytes <= 0:
        return 0.0
    inside = _stage(
        message_bytes,
        group.ranks_per_node,
        bandwidth=intra_node_bandwidth(cluster)[0],
        latency=max((c.intra_node_latency_seconds for c in cluster.classes), default=0.0),
        base_ranks=cluster.intra_node_sweep_ranks or fitted.LATENCY_RANKS_INTRA,
        sweep=cluster.intra_node_sweep,
        backend=cluster.backend,
    )
    if inside > 0 and cluster.backend == "nccl" and not cluster.intra_node_sweep:
        inside += _ramp_seconds(message_bytes, group.ranks_per_node, intra_node_bandwidth(cluster)[0])
    # the parts of a node's ranks add up to the message; several groups multiply it
    crossing = message_bytes * group.groups_per_node
    between = _stage(
        crossing,
        group.num_nodes,
        bandwidth=inter_node_bandwidth(cluster)[0],
        latency=cluster.inter_node_latency_seconds,
        base_ranks=cluster.inter_node_sweep_ranks or fitted.LATENCY_RANKS_INTER,
        sweep=cluster.inter_node_sweep,
        backend=cluster.backend,
    )
    if group.num_nodes > 1 and cluster.backend == "nccl" and not cluster.inter_node_sweep:
        # every rank's part needs to be large before the network is full
        per_rank = message_bytes / group.ranks_per_node
        between *= 1.0 + fitted.RING_HALF_MESSAGE_BYTES / (per_rank + fitted.RING_HALF_MESSAGE_BYTES)
    # a ring over all ranks pipelines the two levels; the slower one sets most of the time
    return max(inside, between) + fitted.LEVELS_IN_SERIES * min(inside, between)


def all_gather_seconds(message_bytes: float, group: Group, cluster: Cluster) -> float:
    """Return the time until every rank has the whole ``message_bytes``, each having held its part: half a reduction."""
    return all_reduce_seconds(message_bytes, group, cluster) / 2


def reduce_scatter_seconds(message_bytes: float, group: Group, cluster: Cluster) -> float:
    """Return the time until every rank has its part of the sum of ``message_bytes``: half a reduction."""
    return all_reduce_seconds(message_bytes, group, cluster) / 2


def ring_latency_seconds(group: Group, cluster: Cluster) -> float:
    """Return what one gather or scatter over NCCL takes for passing every rank in turn, whatever it moves.

    0 inside a node, and where a measured sweep already holds it.
    """
    if group.num_nodes < 2 or cluster.backend != "nccl" or cluster.inter_node_sweep:
        return 0.0
    inside = group.num_nodes * (group.ranks_per_node - 1)
    return inside * fitted.RING_HOP_INTRA_SECONDS + (group.num_nodes - 1) * fitted.RING_HOP_INTER_SECONDS


def broadcast_seconds(message_bytes: float, group: Group, cluster: Cluster) -> float:
    """Return the time to give ``message_bytes`` of one rank to all: the bytes cross each link once, pipelined."""
    if group.size < 2 or message_bytes <= 0:
        return 0.0
    return send_seconds(message_bytes, cluster, across_nodes=group.num_nodes > 1)


def send_seconds(message_bytes: float, cluster: Cluster, *, across_nodes: bool, sharing: int = 1) -> float:
    """Return the time of one point-to-point message; ``sharing`` ranks of a node send at the same time."""
    if across_nodes:
        return cluster.inter_node_latency_seconds + sharing * message_bytes / inter_node_bandwidth(cluster)[0]
    latency = max((c.intra_node_latency_seconds for c in cluster.classes), default=0.0)
    return latency + message_bytes / intra_node_bandwidth(cluster)[0]
