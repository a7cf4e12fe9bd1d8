"""All facts: their declarations, and their values for one cluster, workload and set of candidates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stratadvisor.derive import (
    cluster_facts,
    compression_facts,
    family_facts,
    host_facts,
    interconnect_facts,
    launch_facts,
    memory_facts,
    model_parallel_facts,
    precision_facts,
    synchronization_facts,
    workload_facts,
)
from stratadvisor.derive.context import Context, Derivation
from stratadvisor.derive.families import family_of
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.facts import Fact, FactSpec
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.workload import Workload


@dataclass(frozen=True, slots=True)
class Area:
    """Facts that are computed together."""

    specs: tuple[FactSpec, ...]
    derive: Derivation


AREAS: tuple[Area, ...] = (
    Area(cluster_facts.SPECS, cluster_facts.derive),
    Area(interconnect_facts.SPECS, interconnect_facts.derive),
    Area(workload_facts.SPECS, workload_facts.derive),
    Area(precision_facts.SPECS, precision_facts.derive),
    Area(family_facts.SPECS, family_facts.derive),
    Area(synchronization_facts.SPECS, synchronization_facts.derive),
    Area(compression_facts.SPECS, compression_facts.derive),
    Area(memory_facts.SPECS, memory_facts.derive),
    Area(model_parallel_facts.SPECS, model_parallel_facts.derive),
    Area(host_facts.SPECS, host_facts.derive),
    Area(launch_facts.SPECS, launch_facts.derive),
)

SPECS: dict[str, FactSpec] = {spec.name: spec for area in AREAS for spec in area.specs}
"""Every fact that a rule may name, by name."""


def derive_facts(
    profile: ClusterProfile, cluster: Cluster, workload: Workload, candidates: Iterable[Candidate]
) -> dict[str, Fact]:
    """Return every fact of ``SPECS``; an absent one is there too, with the reason for its absence."""
    context = Context(
        profile=profile,
        cluster=cluster,
        workload=workload,
        candidates=tuple(candidates),
        family_of=family_of,
    )
    found = {fact.name: fact for area in AREAS for fact in area.derive(context)}
    return {name: found[name] for name in SPECS}
