"""Profiles of several machines into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratadvisor.errors import ProfileError
from stratadvisor.probe.spread import spread_verdicts
from stratadvisor.schema.profile import (
    Calibration,
    ClusterProfile,
    CollectiveSweep,
    NodeProfile,
    Observation,
    Verdict,
)

_MUST_AGREE = {"torch": "problem", "nccl": "problem", "cuda": "warning", "deepspeed": "problem", "driver": "warning"}
"""Component -> how bad different versions in one job are: different torch or NCCL may hang or refuse to connect."""
_MAY_DIFFER = ("python",)


def merge_profiles(profiles: Sequence[ClusterProfile], *, replace: bool = False) -> ClusterProfile:
    """Return one profile of all nodes, in the order given.

    Sweeps inside a node that ask the same question are kept once, the slowest: it is the one that a job waits for.

    Raises:
        ProfileError: no profile, or two profiles know the same hostname and ``replace`` is not set. With it the
            profile captured last wins (the later in the list where the time is the same or unknown).

    """
    if not profiles:
        raise ProfileError("there is no profile to merge", hint="probe at least one node first")
    nodes: dict[str, tuple[str, NodeProfile]] = {}
    for profile in profiles:
        for node in profile.nodes:
            known = nodes.get(node.hostname)
            if known is not None and not replace:
                raise ProfileError(
                    f"two profiles describe the node {node.hostname!r}",
                    hint="leave one of them out, or ask for the newer one to replace the older",
                )
            if known is None or profile.captured_at >= known[0]:
                nodes[node.hostname] = (profile.captured_at, node)
    merged = tuple(node for _, node in nodes.values())
    chosen = {id(node) for node in merged}
    kept = [profile for profile in profiles if any(id(node) in chosen for node in profile.nodes)]
    verdicts = dict.fromkeys(verdict for profile in kept for verdict in profile.verdicts)
    verdicts.update(dict.fromkeys((*software_verdicts(merged), *spread_verdicts(merged))))
    return ClusterProfile(
        name=next((profile.name for profile in kept if profile.name), ""),
        captured_at=max(profile.captured_at for profile in kept),
        source="merged",
        nodes=merged,
        collectives=_sweeps(kept),
        node_pairs=tuple(dict.fromkeys(pair for profile in kept for pair in profile.node_pairs)),
        observations=tuple(_observations(kept)),
        verdicts=tuple(verdicts),
        calibrations=_calibrations(kept),
    )


def _sweeps(profiles: Sequence[ClusterProfile]) -> tuple[CollectiveSweep, ...]:
    """Return every sweep between nodes, and of those inside a node the slowest of each kind."""
    chosen: dict[tuple[object, ...], CollectiveSweep] = {}
    for profile in profiles:
        for sweep in profile.collectives:
            key: tuple[object, ...] = (sweep.operation, sweep.scope, sweep.backend, sweep.world_size, sweep.num_nodes)
            if sweep.scope == "inter_node":
                key = (*key, sweep.points)
            other = chosen.get(key)
            if other is None or _speed(sweep) < _speed(other):
                chosen[key] = sweep
    return tuple(chosen.values())


def _speed(sweep: CollectiveSweep) -> float:
    value = sweep.bus_bandwidth_bytes_per_second.value
    if value is not None:
        return value
    return max((point.bus_bandwidth_bytes_per_second for point in sweep.points), default=float("inf"))


def _observations(profiles: Sequence[ClusterProfile]) -> Iterator[Observation]:
    """Yield what went well once, and what did not once per reason, with the nodes that said so before it."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Observation] = {}
    for profile in profiles:
        host = profile.nodes[0].hostname if len(profile.nodes) == 1 else ""
        for observation in profile.observations:
            key: tuple[str, str, str] = (observation.probe, observation.status, observation.reason)
            first.setdefault(key, observation)
            hosts.setdefault(key, []).extend([host] if host else [])
    for asked, observation in first.items():
        if observation.status == "ok":
            yield Observation(probe=observation.probe, status="ok")
        elif hosts[asked]:
            yield observation.model_copy(update={"reason": f"{_some(hosts[asked])}: {observation.reason}"})
        else:
            yield observation


def _calibrations(profiles: Sequence[ClusterProfile]) -> tuple[Calibration, ...]:
    """Return the last calibration of each (device, strategy, model)."""
    found = {(c.device, c.strategy, c.model): c for profile in profiles for c in profile.calibrations}
    return tuple(found.values())


def software_verdicts(nodes: Sequence[NodeProfile]) -> tuple[Verdict, ...]:
    """Return a verdict for every component whose version differs between nodes, or that some nodes lack."""
    verdicts: list[Verdict] = []
    for component in (*_MUST_AGREE, *_MAY_DIFFER):
        versions: dict[str, list[str]] = {}
        for node in nodes:
            if node.software.versions or node.software.missing:
                versions.setdefault(node.software.versions.get(component, "missing"), []).append(node.hostname)
        if len(versions) < 2:
            continue
        text = "; ".join(f"{version} on {_some(hosts)}" for version, hosts in sorted(versions.items()))
        verdicts.append(
            Verdict.model_validate(
                {
                    "level": _MUST_AGREE.get(component, "info"),
                    "subject": component,
                    "message": f"versions differ between nodes: {text}",
                    "advice": f"use one environment or image on all nodes, with the same {component}",
                }
            )
        )
    return tuple(verdicts)


def _some(hosts: Sequence[str], limit: int = 4) -> str:
    named = ", ".join(hosts[:limit])
    return named if len(hosts) <= limit else f"{named} and {len(hosts) - limit} more"
