from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import cluster, gpu, nodes, plan_for

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner import enumerate_candidates, ranking, recost
from stratadvisor.planner.flips import _rivals, _scale_between
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.plan import Flip, Plan
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB, parse_quantity

MODEL = shape_for_size(1.5e9)


def two_sites(rate: float) -> Cluster:
    return cluster(nodes(gpu("A100-80GB"), count=2), between=rate)


def rate_flips(plan: Plan) -> list[tuple[str, float, str]]:
    found = []
    for flip in plan.flips:
        if flip.fact == "bandwidth between nodes":
            sign, _, rate = flip.threshold.partition(" ")
            found.append((sign, parse_quantity(rate, "bytes_per_second"), flip.then))
    return found


def nearly_chosen(plan: Plan, strategy: str) -> bool:
    """Whether a strategy is the choice, or as near as a simpler one may come: a tenth, and what flips leave untried."""
    if plan.strategy == strategy:
        return True
    ratios = [a.relative_to_choice for a in plan.alternatives if a.strategy == strategy]
    return any(r is not None and 0.8 <= r <= 1.2 for r in ratios)


def test_beyond_the_threshold_the_named_strategy_is_chosen_and_short_of_it_not() -> None:
    here, found = 400e9, 0
    for size in (350e6, 1e9, 2e9):
        workload = Workload(model=shape_for_size(size))
        plan = plan_for(two_sites(here), workload)
        for sign, threshold, then in rate_flips(plan):
            found += 1
            beyond, short = (0.8, 1.25) if sign == "<=" else (1.25, 0.8)
            assert (threshold < here) == (sign == "<=")
            assert then != plan.strategy
            assert nearly_chosen(plan_for(two_sites(threshold * beyond), workload), then)
            assert nearly_chosen(plan_for(two_sites(threshold * short), workload), plan.strategy)
    assert found


def test_a_slow_enough_network_makes_local_steps_or_one_node_win_over_exact_averaging() -> None:
    plan = plan_for(two_sites(400e9), Workload(model=MODEL), family="synchronous")
    assert plan.synchronization.mode == "synchronous"
    lower = [then for sign, _, then in rate_flips(plan) if sign == "<="]
    assert lower
    assert lower[0] != plan.strategy


def test_memory_that_would_let_a_replica_fit_is_named() -> None:
    # over PCIe a replica, which exchanges once in a step, beats parameters gathered in every micro-batch
    workload = Workload(model=shape_for_size(7e9))
    plan = plan_for(cluster(nodes(gpu("A100-80GB"), intra=1.5e10)), workload, family="synchronous")
    flip = next(f for f in plan.flips if f.fact == "memory of A100-80GB")
    needed = parse_quantity(flip.threshold.removeprefix(">= "), "bytes")
    # 16 bytes for each of 6.7e9 parameters, and then activations
    assert needed > 16 * 6.7e9
    device = replace(gpu("A100-80GB"), memory_total_bytes=needed * 1.06)
    roomy = plan_for(cluster(nodes(device, intra=1.5e10)), workload, family="synchronous")
    assert nearly_chosen(roomy, flip.then)
    assert flip.then in ("single", "ddp")


def test_one_device_has_no_rate_to_flip() -> None:
    plan = plan_for(cluster(nodes(gpu("A100-80GB"), per_node=1)), Workload(model=MODEL))
    assert not [f for f in plan.flips if f.fact.startswith("bandwidth")]


def test_an_unknown_rate_is_not_scaled() -> None:
    plan = plan_for(cluster(nodes(gpu("A100-80GB"), count=2), between=None), Workload(model=MODEL))
    assert not [f for f in plan.flips if f.fact == "bandwidth between nodes"]
    assert all(isinstance(f, Flip) for f in plan.flips)


def test_host_memory_that_nobody_states_is_named_where_offload_would_win() -> None:
    # 7B over 1 Gb/s: gathering parameters across nodes takes minutes, four cards of 24 GiB alone need their host
    where = [
        cluster(nodes(gpu("RTX-3090"), count=2, per_node=4, intra=1.5e10, host_bytes=host), between=1.25e8)
        for host in (None, 512 * GIB)
    ]
    # an encoder: a decoder's layers could be divided among all eight cards instead
    workload = Workload(model=shape_for_size(7e9).model_copy(update={"family": "encoder"}))
    unknown, known = (plan_for(w, workload) for w in where)
    assert known.strategy == "zero_offload"
    flip = next(f for f in unknown.flips if f.fact.startswith("host memory"))
    assert (flip.now, flip.then) == ("unknown", "zero_offload")
    # twelve bytes of optimizer states for each of 6.7e9 parameters, on two hosts at most
    assert parse_quantity(flip.threshold.removeprefix(">= "), "bytes") > 12 * 6.7e9 / 2


@pytest.mark.parametrize("scaled_by", [0.01, 1.0, 100.0])
def test_every_strategy_is_tried_near_its_best_on_one_node_and_on_both(scaled_by: float) -> None:
    where = two_sites(scaled_by * 12.5e9)
    workload = Workload(model=MODEL)
    candidates = enumerate_candidates(where, workload)
    chosen = ranking.best(candidates, where, "time")
    assert chosen is not None
    by_group: dict[tuple[str, int], float] = {}
    for found in (c for c in candidates if c.feasible):
        group = found.strategy, found.shares[0].num_nodes
        by_group[group] = min(by_group.get(group, found.run_seconds.likely), found.run_seconds.likely)
    assert {num_nodes for _, num_nodes in by_group} == {1, 2}
    tried = _rivals(chosen, candidates, where, workload, _scale_between)
    for group, least in by_group.items():
        own = [c.run_seconds.likely for c in tried if (c.strategy, c.shares[0].num_nodes) == group]
        # what is equal, but for a marginal fit, may be taken in its place
        assert own, group
        assert min(own) <= least * (1 + ranking.TIE) * (1 + ranking.MARGINAL_GAIN), group


@pytest.mark.parametrize("scale", [1 / 512, 1 / 3, 512.0])
def test_what_runs_on_one_node_takes_as_long_on_any_network(scale: float) -> None:
    # such candidates are costed once, not at every rate that is tried
    slow, fast = (gpu(key) for key in ("V100-16GB-SXM", "A100-80GB-PCIe"))
    machines = cluster(nodes(fast, count=2, network=5e9), nodes(slow, per_node=4, network=1e9), between=1e9)
    workload = Workload(model=shape_for_size(1e9))
    other = _scale_between(machines, scale)
    alone = [c for c in enumerate_candidates(machines, workload) if sum(s.num_nodes for s in c.shares) == 1]
    assert len({c.strategy for c in alone}) > 5
    for candidate in alone:
        there, here = (recost.on(candidate, on, workload) for on in (other, machines))
        assert (there.time, there.run_seconds, there.shares) == (here.time, here.run_seconds, here.shares)
