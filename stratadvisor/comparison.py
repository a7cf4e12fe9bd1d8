"""The same model on several clusters, and what a little more of one cluster would buy."""

from __future__ import annotations

from pathlib import Path

from stratadvisor import pipeline
from stratadvisor.errors import ProfileError, StratadvisorError, UsageError
from stratadvisor.schema.base import Reading
from stratadvisor.schema.comparison import ComparedCluster
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.workload import Workload
from stratadvisor.units import format_rate

MAX_CLUSTERS = 20
ASSUMED_NETWORK_BYTES_PER_SECOND = 25e9
"""200 Gb/s for a node more, where nobody said how the nodes would be joined; the entry's name says it."""


def read_cluster(text: str) -> tuple[str, ClusterProfile]:
    """Return the name and profile of a file, or of ``[NODESx]COUNTxTYPE[@RATE]`` with the rate between nodes."""
    path = Path(text)
    if path.suffix.lower() in (".toml", ".json") or path.exists():
        profile = pipeline.load_cluster(cluster=path, gpus=None, inter_node=None, intra_node=None)
    else:
        gpus, _, rate = text.partition("@")
        try:
            profile = pipeline.load_cluster(cluster=None, gpus=gpus, inter_node=rate or None, intra_node=None)
        except UsageError as problem:  # the option is another one here
            raise UsageError(f"{text[:80]}: {problem.message.removeprefix('--gpus: ')}", hint=problem.hint) from None
    if profile is None:
        raise ProfileError(f"{text[:80]} describes no cluster")
    return text, profile


def compare(
    clusters: tuple[tuple[str, ClusterProfile], ...],
    workload: Workload,
    prices: tuple[float, ...] = (),
    *,
    what_if: bool = False,
    overlays: tuple[Path, ...] = (),
    progress: pipeline.Progress | None = None,
) -> tuple[ComparedCluster, ...]:
    """Return one plan for each cluster; ``prices`` are per device and hour, one for all or one for each.

    Raises:
        UsageError: too many clusters, or a number of prices that fits neither.

    """
    if len(clusters) > MAX_CLUSTERS:
        raise UsageError(f"{len(clusters)} clusters to compare; give at most {MAX_CLUSTERS}")
    check_prices(len(clusters), prices)
    entries = []
    for position, (name, profile) in enumerate(clusters):
        if progress is not None:
            progress(f"planning on {name}", position / len(clusters))
        price = prices[min(position, len(prices) - 1)] if prices else None
        priced = workload.model_copy(update={"price_per_device_hour": price}) if price is not None else workload
        try:
            plan = pipeline.recommend(profile, priced, overlays=overlays).plan
            entries.append(ComparedCluster(name=name, what_if=what_if, plan=plan))
        except StratadvisorError as problem:
            entries.append(ComparedCluster(name=name, what_if=what_if, reason=problem.message))
    if progress is not None and clusters:
        progress("planned", 1.0)
    return tuple(entries)


def check_prices(number: int, prices: tuple[float, ...]) -> None:
    """Refuse prices that are neither one for all clusters nor one for each.

    Raises:
        UsageError: some other number.

    """
    if len(prices) not in (0, 1, number):
        raise UsageError(f"{len(prices)} prices for {number} clusters", hint="give --price once, or once for each")


def variations(name: str, profile: ClusterProfile) -> tuple[tuple[str, ClusterProfile], ...]:
    """Return the cluster with one more node, a network twice as fast, and twice the device memory."""
    nodes = profile.nodes
    first = nodes[0]
    more = first.model_copy(update={"count": first.count + 1}) if first.count > 1 or len(nodes) == 1 else None
    added = (more, *nodes[1:]) if more is not None else (*nodes, first.model_copy(update={"hostname": "one-more"}))
    title = f"{name} + 1 node"
    if any(not n.network_bytes_per_second.known for n in added):
        title += f" at {format_rate(ASSUMED_NETWORK_BYTES_PER_SECOND)}"
        added = tuple(_joined(n) for n in added)
    found = [(title, profile.model_copy(update={"nodes": added, "collectives": ()}))]
    if sum(n.count for n in nodes) > 1 and all(n.network_bytes_per_second.known for n in nodes):
        faster = tuple(_faster(n) for n in nodes)
        found.append((f"{name}, network x 2", profile.model_copy(update={"nodes": faster, "collectives": ()})))
    larger = tuple(n.model_copy(update={"devices": tuple(_larger(d) for d in n.devices)}) for n in nodes)
    found.append((f"{name}, memory x 2", profile.model_copy(update={"nodes": larger})))
    return tuple(found)


def _joined(node: NodeProfile) -> NodeProfile:
    rate = Reading(value=ASSUMED_NETWORK_BYTES_PER_SECOND, origin="declared", detail="what if: not known so far")
    return node.model_copy(update={"network_bytes_per_second": rate})


def _faster(node: NodeProfile) -> NodeProfile:
    return node.model_copy(update={"network_bytes_per_second": _doubled(node.network_bytes_per_second)})


def _larger(device: DeviceProfile) -> DeviceProfile:
    return device.model_copy(
        update={
            "memory_total_bytes": _doubled(device.memory_total_bytes),
            "memory_free_bytes": _doubled(device.memory_free_bytes),
        }
    )


def _doubled(reading: Reading) -> Reading:
    if reading.value is None:
        return reading
    return Reading(value=reading.value * 2, origin="declared", detail="what if: twice as much")
