"""Probe every node of a job that torchrun or srun started, and bring the profiles together on the first one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.errors import ProbeError
from stratadvisor.probe import assemble
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.found import Gathered
from stratadvisor.probe.judge import judge
from stratadvisor.probe.lanes import threads_per_lane, usable_cores
from stratadvisor.probe.looker import QUICK_SHARE, Progress
from stratadvisor.probe.merge import merge_profiles
from stratadvisor.probe.place import Place, interface_towards, place
from stratadvisor.probe.run import probe_node
from stratadvisor.schema.profile import ClusterProfile, Observation, Verdict

_SWEEP_BUDGET_SECONDS = 6.0


def probe_job(
    environ: Mapping[str, str] | None = None,
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    storage_path: Path | None = None,
    progress: Progress | None = None,
    time_limit_seconds: float = 60,
) -> ClusterProfile | None:
    """Probe this node, or, under torchrun or srun, all nodes; one process per node does the work.

    Returns the profile, or None in a process whose node or job another process reports.

    Raises:
        UsageError: wrong names, or a launcher's variables that contradict each other.
        ProbeError: as ``probe_node``; or the nodes could not meet.

    """
    where = place(os.environ if environ is None else environ)
    if where is not None and not where.leads:
        return None
    profile = probe_node(
        only=only,
        skip=skip,
        quick=quick,
        storage_path=storage_path,
        progress=progress,
        time_limit_seconds=time_limit_seconds,
    )
    if where is None or where.num_nodes < 2:
        return profile
    if progress is not None:
        progress("meeting the other nodes", None)
    gathered = _meet(where, profile, quick=quick, wait_seconds=time_limit_seconds)
    return _together(gathered) if where.node_rank == 0 else None


def _meet(where: Place, profile: ClusterProfile, *, quick: bool, wait_seconds: float) -> Gathered:
    node = profile.nodes[0]
    interface = interface_towards(where.address, where.port, node.nics)
    on_cpu = all(device.kind == "cpu" for device in node.devices)
    threads = threads_per_lane(usable_cores(node.cpu), 1)
    settings = {
        "node_rank": where.node_rank,
        "num_nodes": where.num_nodes,
        "address": where.address,
        "port": where.port,
        "store_is_running": where.store_is_running,
        "document": profile.model_dump_json(),
        "device": "cpu" if on_cpu else "cuda:0",
        "threads": threads,
        "wait_seconds": wait_seconds,
        "budget_seconds": _SWEEP_BUDGET_SECONDS * (QUICK_SHARE if quick else 1.0),
        "quick": quick,
    }
    limit = 4 * wait_seconds + 60  # every wait inside has a limit of its own; this one is for a hang
    with Crew(1, threads, gloo_interface=interface) as crew:
        answer = crew.ask("stratadvisor.probe.exchange:meet", {0: settings}, limit)[0]
    if answer.status != "ok" or not isinstance(answer.value, Gathered):
        raise ProbeError(
            f"node {where.node_rank} could not meet the others at {where.address}:{where.port}: {answer.reason}",
            hint="check that this address is reachable from every node and the port is open, or set MASTER_ADDR",
        )
    return answer.value


def _together(gathered: Gathered) -> ClusterProfile:
    profiles = [ClusterProfile.model_validate_json(text) for _, text in sorted(gathered.documents.items())]
    profiles, verdicts = distinct(profiles, sorted(gathered.documents))
    merged = merge_profiles(profiles)
    observations = list(merged.observations)
    observations += [
        Observation(probe="collectives", status="timed_out", reason=f"between nodes: node {rank} did not come in time")
        for rank in gathered.missing
    ]
    if gathered.sweep is None:
        observations.append(
            Observation(probe="collectives", status="failed", reason=f"between nodes: {gathered.sweep_reason}")
        )
        return merged.model_copy(
            update={"observations": tuple(observations), "verdicts": (*merged.verdicts, *verdicts)}
        )
    sweep = assemble.sweep_profile(gathered.sweep, "one rank on each node").model_copy(
        update={"scope": "inter_node", "num_nodes": gathered.sweep.world_size}
    )
    between = ClusterProfile(nodes=merged.nodes, collectives=(sweep,))
    verdicts += [verdict for verdict in judge(between) if verdict.subject.endswith("between nodes")]
    return merged.model_copy(
        update={
            "collectives": (*merged.collectives, sweep),
            "observations": tuple(observations),
            "verdicts": (*merged.verdicts, *verdicts),
        }
    )


def distinct(profiles: list[ClusterProfile], ranks: list[int]) -> tuple[list[ClusterProfile], list[Verdict]]:
    """Give nodes that call themselves alike (containers do) the node's rank as a suffix, and say so."""
    names = [profile.nodes[0].hostname for profile in profiles]
    twice = {name for name in names if names.count(name) > 1}
    renamed: list[ClusterProfile] = []
    for profile, rank in zip(profiles, ranks, strict=True):
        node = profile.nodes[0]
        if node.hostname in twice:
            node = node.model_copy(update={"hostname": f"{node.hostname}-{rank}"})
        renamed.append(profile.model_copy(update={"nodes": (node,)}))
    return renamed, [
        Verdict(
            level="warning",
            subject=name,
            message=f"{names.count(name)} nodes call themselves {name}; the profile adds their rank",
            advice="give every node or container its own hostname, or check that two do not run on one machine",
        )
        for name in sorted(twice)
    ]
