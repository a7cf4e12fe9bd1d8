"""Flips on candidates of one small model: cheap to cost again, so that the thresholds can be tried."""

from __future__ import annotations

from dataclasses import replace

from planning_clusters import cluster, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner import ranking, recost
from stratadvisor.planner.flips import LARGEST_SCALE, flips
from stratadvisor.planner.search import enumerate_candidates
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Flip
from stratadvisor.schema.workload import Workload
from stratadvisor.units import parse_quantity

WORKLOAD = Workload(model=shape_for_size(350e6), global_batch_size=64)
PAIR = cluster(nodes(gpu("A100-80GB"), count=2, per_node=1), between=1e10)
NODE = cluster(nodes(gpu("A100-80GB"), per_node=2))


def few(where: Cluster, *names: str) -> tuple[Candidate, ...]:
    """Return the quickest three candidates of each strategy."""
    found = []
    for name in names:
        own = [c for c in enumerate_candidates(where, WORKLOAD, (name,)) if c.feasible]
        found += sorted(own, key=lambda c: c.run_seconds.likely)[:3]
    return tuple(found)


def found_flips(where: Cluster, candidates: tuple[Candidate, ...], chosen: Candidate | None = None) -> list[Flip]:
    best = chosen or ranking.best(candidates, where, "time")
    assert best is not None
    return [f for f in flips(best, candidates, where, WORKLOAD, lambda _: True) if f.fact.startswith("bandwidth")]


def test_a_slower_network_lets_one_device_win_just_beyond_the_threshold() -> None:
    candidates = few(PAIR, "single", "ddp")
    both = ranking.best(candidates, PAIR, "time")
    assert both is not None
    assert both.strategy == "ddp"
    (flip,) = found_flips(PAIR, candidates)
    assert (flip.fact, flip.then) == ("bandwidth between nodes", "single")
    sign, _, text = flip.threshold.partition(" ")
    assert sign == "<="
    threshold = parse_quantity(text, "bytes_per_second")
    assert 1e10 / LARGEST_SCALE <= threshold < 1e10

    def winner(rate: float) -> str:
        at = replace(PAIR, inter_node_bytes_per_second=rate)
        best = ranking.best([recost.on(c, at, WORKLOAD) for c in candidates], at, "time")
        assert best is not None
        return best.strategy

    # known within 2 ** (1 / 2 ** 5), about 2 %, and printed with three digits
    assert winner(threshold * 0.99) == "single"
    assert winner(threshold * 1.04) == "ddp"


def test_a_choice_that_is_not_the_best_has_no_threshold() -> None:
    candidates = few(PAIR, "single", "ddp")
    alone = next(c for c in candidates if c.strategy == "single")
    assert found_flips(PAIR, candidates, alone) == []


def test_links_inside_a_node_count_where_there_is_one_node() -> None:
    candidates = few(NODE, "single", "ddp")
    (flip,) = found_flips(NODE, candidates)
    assert (flip.fact, flip.then) == ("bandwidth inside a node", "single")
    blind = cluster(nodes(gpu("A100-80GB"), per_node=2, intra=None))
    assert found_flips(blind, few(blind, "single", "ddp")) == []
    # over several nodes only the network between them is named, if it is known
    unknown = replace(PAIR, inter_node_bytes_per_second=None)
    assert found_flips(unknown, few(unknown, "single", "ddp")) == []


def test_a_faster_network_may_bring_more_devices_in() -> None:
    slow = replace(PAIR, inter_node_bytes_per_second=2e7)
    candidates = few(slow, "single", "ddp")
    alone = ranking.best(candidates, slow, "time")
    assert alone is not None
    assert alone.strategy == "single"
    (flip,) = found_flips(slow, candidates)
    sign, _, text = flip.threshold.partition(" ")
    assert (sign, flip.then) == (">=", "ddp")
    assert parse_quantity(text, "bytes_per_second") > 2e7
