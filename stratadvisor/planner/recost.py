"""Cost a candidate again: on another network, with its exchange compressed, or with the model compiled."""

from __future__ import annotations

from dataclasses import replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.common import timed
from stratadvisor.strategies.selections import part_used


def on(candidate: Candidate, cluster: Cluster, workload: Workload) -> Candidate:
    """Return the candidate with its times on ``cluster``, which has the classes it uses."""
    return timed(candidate, part_used(cluster, candidate.shares), workload)


def compressed(candidate: Candidate, cluster: Cluster, workload: Workload, compression: str) -> Candidate:
    """Return the candidate with its exchange compressed."""
    changed = replace(candidate, settings={**candidate.settings, "compression": compression})
    return on(changed, cluster, workload)


def compiled(candidate: Candidate, cluster: Cluster, workload: Workload) -> Candidate:
    """Return the candidate with a compiled model."""
    changed = replace(candidate, layout=replace(candidate.layout, compiled=True))
    return on(changed, cluster, workload)
