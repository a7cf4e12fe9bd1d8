import itertools
import math

import pytest

from stratadvisor.probe.nodes.rounds import (
    GROUP_NODES,
    TOURNAMENT_NODES,
    disjoint,
    plan_rounds,
    split,
    tournament,
)

SIZES = [2, 3, 4, 5, 7, 8, 15, 16, 17, 18, 31, 63, 64, 65, 100, 1000, 1023, 10_000]


@pytest.mark.parametrize("count", range(2, 20))
def test_in_a_tournament_all_meet_once_in_as_few_rounds_as_possible(count: int) -> None:
    rounds = tournament(range(count))
    assert sorted(tuple(sorted(pair)) for each in rounds for pair in each) == list(
        itertools.combinations(range(count), 2)
    )
    # count(count-1)/2 pairs, floor(count/2) of them at a time
    assert len(rounds) == (count * (count - 1) // 2) / (count // 2)


@pytest.mark.parametrize("count", SIZES)
def test_nobody_is_in_two_pairs_of_a_round(count: int) -> None:
    for each in plan_rounds(range(count)):
        members = [rank for pair in each.pairs for rank in pair]
        assert len(members) == len(set(members))
        assert set(members) <= set(range(count))


@pytest.mark.parametrize("count", SIZES)
def test_rounds_grow_with_the_logarithm(count: int) -> None:
    rounds = plan_rounds(range(count))
    if count <= TOURNAMENT_NODES:
        assert len(rounds) == count - 1 + count % 2
        return
    groups = math.ceil(count / GROUP_NODES)
    largest = math.ceil(count / groups)
    sizes = {count // groups, largest}
    inside = max(size - 1 + size % 2 for size in sizes)
    assert len(rounds) == inside + math.ceil(math.log2(groups)) + math.ceil(math.log2(count))


@pytest.mark.parametrize("count", [n for n in SIZES if n > TOURNAMENT_NODES])
def test_every_node_meets_its_group_and_nodes_of_others(count: int) -> None:
    group_of = {rank: set(members) for members in split(range(count)) for rank in members}
    met: dict[int, set[int]] = {rank: set() for rank in range(count)}
    for each in plan_rounds(range(count)):
        for a, b in each.pairs:
            met[a].add(b)
            met[b].add(a)
    for rank, partners in met.items():
        assert partners >= group_of[rank] - {rank}
        assert partners - group_of[rank], f"node {rank} met nobody of another group"


def test_the_same_seed_gives_the_same_plan_and_another_one_another() -> None:
    assert plan_rounds(range(100), 7) == plan_rounds(range(100), 7)
    assert plan_rounds(range(100), 7) != plan_rounds(range(100), 8)


def test_ranks_need_not_be_consecutive() -> None:
    ranks = [3, 5, 11, 40]
    pairs = {frozenset(pair) for each in plan_rounds(ranks) for pair in each.pairs}
    assert pairs == {frozenset(pair) for pair in itertools.combinations(ranks, 2)}


@pytest.mark.parametrize("ranks", [[], [4]])
def test_one_node_has_nobody_to_meet(ranks: list[int]) -> None:
    assert plan_rounds(ranks) == ()


def test_pairs_that_share_a_node_go_to_different_rounds() -> None:
    assert disjoint([(0, 1), (2, 3), (1, 2), (0, 1), (0, 3)], 2) == [((0, 1), (2, 3)), ((1, 2), (0, 3))]
    assert disjoint([(0, 1), (0, 2), (0, 3)], 2) == [((0, 1),), ((0, 2),)]
