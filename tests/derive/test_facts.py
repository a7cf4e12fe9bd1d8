from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import candidate, facts_of, profile_of
from planning_clusters import GIGABIT, cluster, cpu, gpu, nodes

from stratadvisor.derive.facts import AREAS, SPECS, derive_facts
from stratadvisor.rules_engine.load import load_ruleset
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.workload import Workload

A100, V100 = nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB"))
CLUSTERS = {
    "one node": cluster(A100),
    "one cpu": cluster(nodes(cpu(), per_node=1), backend="gloo"),
    "unequal": cluster(A100, V100, between=GIGABIT),
    "nothing known": cluster(
        replace(
            nodes(gpu("A100-80GB", memory_known=False), count=2),
            cpu_cores=None,
            host_memory_bytes=None,
            intra_node_bytes_per_second=None,
        )
    ),
    "empty": Cluster(
        name="empty", classes=(), inter_node_bytes_per_second=None, inter_node_latency_seconds=0.0, backend="gloo"
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("with_candidates", [True, False])
def test_every_declared_fact_is_there_with_its_type_or_a_reason(name: str, with_candidates: bool) -> None:
    where = CLUSTERS[name]
    several = where.num_devices > 1
    made = (candidate("ddp" if several else "single", *where.classes),) if with_candidates and where.classes else ()
    facts = facts_of(where, *made)
    assert list(facts) == list(SPECS)
    kinds = {"number": float, "boolean": bool, "text": str}
    for fact in facts.values():
        if fact.value is None:
            assert fact.origin == "unknown"
            assert fact.because, fact.name
        else:
            assert type(fact.value) is kinds[SPECS[fact.name].type], fact
            assert fact.origin != "unknown"


def test_no_fact_is_declared_twice() -> None:
    names = [spec.name for area in AREAS for spec in area.specs]
    assert len(names) == len(set(names)) == len(SPECS)


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_shipped_flowchart_answers_for_every_cluster(name: str) -> None:
    outcome = walk(load_ruleset(), facts_of(CLUSTERS[name]), SPECS)
    assert outcome.settings["family"]
    assert outcome.decisions[0].question == "hardware_readiness"


def test_the_order_of_candidates_does_not_matter() -> None:
    where = CLUSTERS["unequal"]
    made = [
        candidate("ddp", A100, V100, run=100, exposed=0.4, variant="a"),
        candidate("ddp", A100, V100, run=90, exposed=0.3, variant="b"),
        candidate("uneven_ddp", A100, V100, run=80, batch=(12, 4), exposed=0.2),
        candidate("diloco", A100, V100, run=40),
        candidate("zero3", A100, run=100),
    ]
    assert facts_of(where, *made) == facts_of(where, *reversed(made))


def test_a_cluster_from_the_planner_gives_facts_for_the_real_candidates() -> None:
    from stratadvisor.catalog.sizes import shape_for_size
    from stratadvisor.planner import enumerate_candidates

    where = CLUSTERS["unequal"]
    workload = Workload(model=shape_for_size(1e8))
    candidates = enumerate_candidates(where, workload)
    facts: dict[str, Fact] = derive_facts(profile_of(), where, workload, candidates)
    feasible = [c for c in candidates if c.feasible]
    # the scale of relative times: no exact method is faster than the best exact one, and one is exactly as fast
    exact = [
        value
        for f in ("single", "synchronous", "uneven_synchronous")
        if (value := facts[f"family.{f}.relative_time"].value) is not None
    ]
    assert min(exact) == 1.0
    assert feasible
    assert facts["sync.exposed_communication_fraction"].value is not None
    assert facts["memory.replica_fit_ratio"].value is not None
