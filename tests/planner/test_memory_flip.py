from __future__ import annotations

from dataclasses import replace

from planning_clusters import cluster, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner import ranking
from stratadvisor.planner.choice import _with_precision
from stratadvisor.planner.memory_flip import MOST_MEMORY, memory_flip
from stratadvisor.planner.request import Request
from stratadvisor.planner.search import enumerate_candidates
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB, parse_quantity

WORKLOAD = Workload(model=shape_for_size(350e6), global_batch_size=64)


def pair(gib: float, free: bool = False, **changes: object) -> Cluster:
    """Return two cards over a link so slow that whole replicas, which exchange once, win where they fit."""
    device = replace(gpu("A100-80GB"), memory_total_bytes=gib * GIB, memory_free_bytes=gib * GIB if free else None)
    return cluster(nodes(device, per_node=2, intra=2e9, host_bytes=4 * GIB, **changes))  # type: ignore[arg-type]


def best(where: Cluster, *names: str) -> Candidate:
    found = ranking.best(enumerate_candidates(where, WORKLOAD, names), where, "time")
    assert found is not None
    return found


def test_the_memory_named_is_what_the_simpler_way_needs() -> None:
    where = pair(6.0)  # 16 bytes for each of 0.35e9 parameters and the context are more
    chosen = best(where, "single", "ddp", "fsdp2")
    assert chosen.strategy == "fsdp2"
    flip = memory_flip(chosen, where, WORKLOAD, lambda _: True)
    assert flip is not None
    assert (flip.fact, flip.now, flip.then) == ("memory of A100-80GB", "6 GiB", "single")
    threshold = parse_quantity(flip.threshold.removeprefix(">= "), "bytes")
    assert 16 * WORKLOAD.model.num_parameters < threshold < MOST_MEMORY * 6 * GIB
    # with as much the plan changes, with a twentieth less not; three digits are printed
    assert best(pair(threshold / GIB * 1.01), "single", "ddp", "fsdp2").strategy == "single"
    assert best(pair(threshold / GIB * 0.95), "single", "ddp", "fsdp2").strategy == "fsdp2"
    known = pair(6.0, free=True)
    free = memory_flip(best(known, "fsdp2"), known, WORKLOAD, lambda _: True)
    assert free is not None
    assert free.fact == "free memory of A100-80GB"


def test_no_memory_is_named_where_none_would_help() -> None:
    where = pair(6.0)
    chosen = best(where, "fsdp2")
    assert memory_flip(chosen, where, WORKLOAD, lambda c: c.strategy == "fsdp2") is None  # rules bar the rest
    packed = WORKLOAD.model_copy(update={"method": "qlora"})
    assert memory_flip(chosen, where, packed, lambda _: True) is None
    roomy = pair(40.0)
    assert memory_flip(best(roomy, "ddp"), roomy, WORKLOAD, lambda _: True) is None  # simple already
    blind = cluster(nodes(gpu("A100-80GB", memory_known=False), per_node=2, intra=2e9))
    assert memory_flip(best(blind, "fsdp2"), blind, WORKLOAD, lambda _: True) is None
    # four times as much does not hold a replica of 16 bytes a parameter: there is no such device
    least = pair(16 * WORKLOAD.model.num_parameters / GIB / 4.2)
    shares = chosen.shares
    assert memory_flip(replace(chosen, shares=shares), least, WORKLOAD, lambda _: True) is None


def test_a_precision_is_enumerated_where_rules_ask_for_it_and_nobody_else_did() -> None:
    where = pair(40.0)
    candidates = enumerate_candidates(where, WORKLOAD, ("ddp",))
    assert {c.layout.precision for c in candidates} == {"bf16"}
    same = WORKLOAD, candidates
    assert _with_precision(where, WORKLOAD, candidates, Request()) == same
    assert _with_precision(where, WORKLOAD, candidates, Request(precision="bf16")) == same
    workload, found = _with_precision(where, WORKLOAD, candidates, Request(precision="fp32"))
    assert workload.precision == "fp32"
    assert {c.layout.precision for c in found} == {"fp32"}
    fixed = WORKLOAD.model_copy(update={"precision": "bf16"})
    assert _with_precision(where, fixed, candidates, Request(precision="fp32")) == (fixed, candidates)


def test_memory_that_would_spare_the_offload_is_named() -> None:
    # states of 12 bytes for each of 0.35e9 parameters on two cards of 3 GiB: only the hosts have room for them
    where = pair(3.0)
    where = replace(where, classes=(replace(where.classes[0], host_memory_bytes=64 * GIB),))
    chosen = best(where, "zero_offload")
    assert ranking.offloads(chosen)
    flip = memory_flip(chosen, where, WORKLOAD, lambda _: True)
    assert flip is not None
    assert flip.then in ("single", "ddp", "fsdp2")
    threshold = parse_quantity(flip.threshold.removeprefix(">= "), "bytes")
    # half of 12 bytes a parameter on each of the two at least
    assert 6 * WORKLOAD.model.num_parameters < threshold < MOST_MEMORY * 3 * GIB
