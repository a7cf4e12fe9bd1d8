"""Probe this node, or every node of a job that a launcher started, and bring the profiles together on the first one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from stratadvisor.probe.looker import Progress
from stratadvisor.probe.nodes.fleet import Fleet
from stratadvisor.probe.nodes.together import cluster_profile
from stratadvisor.probe.place import place
from stratadvisor.probe.run import probe_node
from stratadvisor.schema.profile import ClusterProfile, Verdict


def probe_job(
    environ: Mapping[str, str] | None = None,
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    storage_path: Path | None = None,
    progress: Progress | None = None,
    time_limit_seconds: float = 60,
    keep: Callable[[ClusterProfile], object] | None = None,
    output: Path | None = None,
) -> ClusterProfile | None:
    """Probe this node, or, under a launcher, all nodes; one process per node does the work.

    Args:
        environ: the launcher's variables.
        only: as of ``probe_node``.
        skip: the same.
        quick: the same.
        storage_path: the same.
        progress: the same.
        time_limit_seconds: of each node's own measurements.
        keep: given what has come together when the probe of several nodes is broken off with Ctrl-C.
        output: where the profile will be written; what comes in from the nodes lies beside it until then.

    Returns:
        The profile, or None in a process whose node or job another process reports.

    Raises:
        UsageError: wrong names, or a launcher's variables that contradict each other.
        ProbeError: as ``probe_node``; or the nodes could not meet.

    """
    where = place(os.environ if environ is None else environ)
    if where is not None and not where.leads:
        return None

    def own() -> ClusterProfile:
        return probe_node(
            only=only,
            skip=skip,
            quick=quick,
            storage_path=storage_path,
            progress=progress,
            time_limit_seconds=time_limit_seconds,
        )

    if where is None or where.num_nodes < 2:
        return own()
    fleet = Fleet(where=where, time_limit_seconds=time_limit_seconds, quick=quick, progress=progress, journal=output)
    try:
        found = fleet.run(own)
    except KeyboardInterrupt:
        partial = fleet.so_far()
        if keep is not None and partial is not None:
            keep(broken_off(cluster_profile(partial)))
        raise
    if found is None:
        return None
    profile = cluster_profile(found)
    if keep is not None:
        keep(profile)
        fleet.done()
    return profile


def broken_off(profile: ClusterProfile) -> ClusterProfile:
    """Return the profile with a word that it is not whole."""
    verdict = Verdict(
        level="problem",
        subject="probe",
        message="broken off: this is what had been measured until then",
        advice="probe again for a whole profile",
    )
    return profile.model_copy(update={"verdicts": (verdict, *profile.verdicts)})
