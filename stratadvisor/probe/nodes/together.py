"""From what the nodes brought to the profile of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stratadvisor.probe import assemble
from stratadvisor.probe.fit import fit_alpha_beta
from stratadvisor.probe.found import SweepTimes
from stratadvisor.probe.judge import judge_between
from stratadvisor.probe.merge import merge_profiles
from stratadvisor.probe.nodes.conductor import Found
from stratadvisor.probe.nodes.diagnosis import Diagnosis, diagnose
from stratadvisor.probe.nodes.measured import Link
from stratadvisor.probe.nodes.verdicts import link_verdicts, lost_verdicts, used_interfaces
from stratadvisor.schema.base import Reading, measured
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    NodePair,
    NodeProfile,
    Observation,
    SweepPoint,
    Verdict,
)

MOST_PAIRS = 1000
"""Pairs that a profile holds; of more only those with something to say."""
_LATE = ("no sign of life", "did not come within", "did not finish in time")
_RDMA = ("infiniband", "roce", "efa")
_TIMES = TypeAdapter(SweepTimes)


def cluster_profile(found: Found) -> ClusterProfile:
    """Return one profile of all nodes that handed over theirs; who is lost is in the verdicts and observations."""
    found = _without_lost(found)
    ranks = sorted(found.profiles)
    diagnosis = diagnose(found.links, found.planned)
    profiles, verdicts = distinct([found.profiles[rank] for rank in ranks], ranks)
    nodes = dict(zip(ranks, (profile.nodes[0] for profile in profiles), strict=True))
    names = {rank: _name(rank, nodes, found) for rank in {*nodes, *found.lost, *found.hellos}}
    used = used_interfaces(found)
    profiles = [
        profile.model_copy(update={"nodes": (_with_network(nodes[rank], rank, diagnosis, used),)})
        for rank, profile in zip(ranks, profiles, strict=True)
    ]
    merged = merge_profiles(profiles)
    sweeps = _sweeps(found, names)
    verdicts += lost_verdicts(found.lost, names)
    verdicts += link_verdicts(found, diagnosis, names, nodes)
    all_reduce = tuple(sweep for sweep in sweeps if sweep.operation == "all_reduce")
    between = ClusterProfile(nodes=tuple(nodes.values()), collectives=all_reduce)
    verdicts += judge_between(between)
    return merged.model_copy(
        update={
            "collectives": (*merged.collectives, *sweeps),
            "node_pairs": _pairs(found.links, diagnosis, names),
            "observations": (*merged.observations, *_observations(found, names)),
            "verdicts": (*verdicts, *merged.verdicts),
        }
    )


def _without_lost(found: Found) -> Found:
    """Return what came together without the nodes that were lost later; all of it where every node was lost."""
    kept = {rank: profile for rank, profile in found.profiles.items() if rank not in found.lost}
    if not kept:
        return found
    return replace(found, profiles=kept, links=[link for link in found.links if link.a in kept and link.b in kept])


def distinct(profiles: Sequence[ClusterProfile], ranks: Sequence[int]) -> tuple[list[ClusterProfile], list[Verdict]]:
    """Give nodes that call themselves alike (containers do) the node's rank as a suffix, and say so."""
    names = [profile.nodes[0].hostname for profile in profiles]
    count = dict.fromkeys(names, 0)
    for name in names:
        count[name] += 1
    renamed: list[ClusterProfile] = []
    for profile, rank in zip(profiles, ranks, strict=True):
        node = profile.nodes[0]
        if count[node.hostname] > 1:
            node = node.model_copy(update={"hostname": f"{node.hostname}-{rank}"})
        renamed.append(profile.model_copy(update={"nodes": (node,)}))
    return renamed, [
        Verdict(
            level="warning",
            subject=name,
            message=f"{times} nodes call themselves {name}; the profile adds their rank",
            advice="give every node or container its own hostname, or check that two do not run on one machine",
        )
        for name, times in sorted(count.items())
        if times > 1
    ]


def _name(rank: int, nodes: Mapping[int, NodeProfile], found: Found) -> str:
    if rank in nodes:
        return nodes[rank].hostname
    if rank in found.hellos and rank not in found.labels:
        return found.hellos[rank].hostname
    return found.labels.get(rank, f"node {rank}")


def _with_network(node: NodeProfile, rank: int, diagnosis: Diagnosis, used: Mapping[int, str]) -> NodeProfile:
    """Return the node with its measured rate; where RDMA is up, TCP says nothing of it and the reported rate stays."""
    reach = diagnosis.reach.get(rank)
    if reach is None or any(nic.kind in _RDMA and nic.up is not False for nic in node.nics):
        return node
    reading = _network_reading(node, min(reach.sends, reach.receives), reach.num_partners, used.get(rank, ""))
    return node.model_copy(update={"network_bytes_per_second": reading})


def _network_reading(node: NodeProfile, rate: float, partners: int, interface: str) -> Reading:
    over = f" over {interface}" if interface else ""
    before = node.network_bytes_per_second
    stated = f"; before: {before.detail}" if before.known else ""
    return measured(
        rate, f"slower direction of its best TCP transfer with {partners} other nodes, one at a time{over}{stated}"
    )


def _pairs(links: Sequence[Link], diagnosis: Diagnosis, names: Mapping[int, str]) -> tuple[NodePair, ...]:
    best: dict[frozenset[int], Link] = {}
    for link in links:
        key = frozenset(link.ends)
        if key not in best or link.forward + link.backward > best[key].forward + best[key].backward:
            best[key] = link
    chosen = list(best.values())
    if len(chosen) > MOST_PAIRS:
        slow = {frozenset((link.a, link.b)) for link in diagnosis.links}
        chosen = [link for key, link in best.items() if key in slow][:MOST_PAIRS]
    return tuple(
        NodePair(
            a=names[link.a],
            b=names[link.b],
            a_to_b_bytes_per_second=link.forward,
            b_to_a_bytes_per_second=link.backward,
            latency_seconds=link.latency_seconds,
            interface_a=link.interfaces[0],
            interface_b=link.interfaces[1],
        )
        for link in chosen
    )


def _sweeps(found: Found, names: Mapping[int, str]) -> tuple[CollectiveSweep, ...]:
    sweeps: list[CollectiveSweep] = []
    times = _times(found.sweep)
    if times is not None:
        sweep = assemble.sweep_profile(times, "one rank on each node")
        used = used_interfaces(found)
        carriers = {used.get(rank, "") for rank in found.profiles}
        where = {"interface": carriers.pop()} if len(carriers) == 1 else {}
        sweeps.append(sweep.model_copy(update={"scope": "inter_node", "num_nodes": times.world_size, **where}))
    timed = sorted((link for link in found.links if len(link.points) >= 2), key=lambda link: link.points[-1][1])
    if timed:
        sweeps.append(_point_to_point(timed[len(timed) // 2], names, len(timed)))
    return tuple(sweeps)


def _times(content: dict[str, Any] | None) -> SweepTimes | None:
    try:
        times = _TIMES.validate_python(content) if content is not None else None
    except ValidationError:
        return None
    ok = times is not None and times.world_size >= 2 and all(size > 0 and s > 0 for size, s in times.points)
    return times if ok else None


def _point_to_point(link: Link, names: Mapping[int, str], count: int) -> CollectiveSweep:
    """Return the curve of the pair in the middle."""
    fit = fit_alpha_beta([(float(size), seconds) for size, seconds in link.points])
    which = f"between {names[link.a]} and {names[link.b]}, the median of {count} pairs"
    rate = min(link.forward, link.backward)
    return CollectiveSweep(
        operation="send_recv",
        scope="inter_node",
        backend="unknown",
        world_size=2,
        num_nodes=2,
        points=tuple(
            SweepPoint(
                message_bytes=size,
                seconds=seconds,
                algorithm_bandwidth_bytes_per_second=size / seconds,
                bus_bandwidth_bytes_per_second=size / seconds,
            )
            for size, seconds in link.points
        ),
        latency_seconds=measured(
            fit.latency_seconds or link.latency_seconds,
            f"alpha of a fit over {fit.num_points} sizes of TCP messages {which}",
        ),
        bus_bandwidth_bytes_per_second=measured(rate, f"a longer TCP transfer, the slower direction, {which}"),
    )


def _observations(found: Found, names: Mapping[int, str]) -> list[Observation]:
    said: list[Observation] = []
    for rank, reason in sorted(found.lost.items()):
        status = "timed_out" if any(sign in reason for sign in _LATE) else "failed"
        said.append(
            Observation.model_validate({"probe": "nodes", "status": status, "reason": f"{names[rank]}: {reason}"})
        )
    for a, b, reason in found.failed:
        if a not in found.lost and b not in found.lost:
            text = f"{names[a]} and {names[b]}: {reason}"
            said.append(Observation(probe="node_pairs", status="failed", reason=text))
    if found.links:
        measured_pairs = len({(min(link.ends), max(link.ends)) for link in found.links})
        all_pairs = len(found.planned) * (len(found.planned) - 1) // 2
        text = f"{measured_pairs} of {all_pairs} pairs in {found.num_rounds} rounds"
        said.append(Observation(probe="node_pairs", status="ok", reason=text))
    if found.sweep is None and found.sweep_reason:
        said.append(Observation(probe="collectives", status="failed", reason=f"between nodes: {found.sweep_reason}"))
    return said
