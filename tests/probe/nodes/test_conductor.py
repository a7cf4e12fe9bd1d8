"""The real conductor on the simulated network."""

import math

import pytest

from stratadvisor.probe.nodes.conductor import MOST_CONFIRMING, Conductor, Found, Limits
from stratadvisor.probe.nodes.diagnosis import diagnose
from stratadvisor.probe.nodes.rounds import GROUP_NODES, split
from stratadvisor.probe.nodes.simulated import Faults, SimulatedNetwork

DOCUMENT = '{"nodes": [{"hostname": "HOSTNAME"}]}'
LIMITS = Limits(arrive=30, gather=90, round=20, transfer=0.4)
OWN_PROBE = 40.0
IN_THE_ROUNDS = OWN_PROBE + 3.5
"""A moment after the last node came (3 s at the latest) and measured itself."""


def played(count: int, faults: Faults | None = None, **more: object) -> tuple[Found, SimulatedNetwork]:
    network = SimulatedNetwork(count, document=DOCUMENT, faults=faults, own_probe_seconds=OWN_PROBE)
    return Conductor(network, count, LIMITS, **more).run(), network  # type: ignore[arg-type]


def most_rounds(count: int) -> int:
    """The bound of ``plan_rounds`` for more nodes than a tournament takes, and the rounds that look again."""
    groups = math.ceil(count / GROUP_NODES)
    return GROUP_NODES + math.ceil(math.log2(groups)) + math.ceil(math.log2(count)) + 2 * MOST_CONFIRMING


@pytest.mark.parametrize("count", [2, 3, 5, 16, 17, 100, 600])
def test_a_healthy_cluster_has_nothing_slow(count: int) -> None:
    found, _ = played(count)
    assert len(found.profiles) == count
    assert not found.lost
    assert not found.failed
    diagnosis = diagnose(found.links)
    assert (diagnosis.nodes, diagnosis.links, diagnosis.ways_out) == ((), (), ())
    assert {rank for link in found.links for rank in link.ends} == set(range(count))
    assert found.sweep is not None
    assert found.sweep["world_size"] == count


@pytest.mark.parametrize("count", [32, 128, 512])
def test_rounds_and_messages_stay_in_bounds(count: int) -> None:
    found, network = played(count)
    rounds = most_rounds(count)
    assert found.num_rounds <= rounds
    # hello, profile; a task and its answer in every round and in the sweep; dismissal
    per_node = 2 + 2 * rounds + 2 + 1
    opening = 2
    assert network.messages <= count * per_node + opening


def test_bad_node_link_and_interface_are_named_in_a_large_cluster() -> None:
    count = 400
    inside = split(range(count))[3]
    link = (inside[1], inside[4])
    group = 17
    faults = Faults(
        dead_at={33: IN_THE_ROUNDS},
        frozen_at={77: 20.0, 78: IN_THE_ROUNDS},
        slow_senders={123: 0.1},
        slow_receivers={123: 0.1, 250: 0.2},
        slow_links={link: 0.25, (link[1], link[0]): 0.25},
        slow_ways_out={group: 0.3},
    )
    found, _ = played(count, faults)
    assert set(found.lost) == {33, 77, 78}
    assert "ended" in found.lost[33]
    assert "stopped" in found.lost[77]
    assert "measured itself" in found.lost[77]
    assert "stopped" in found.lost[78]
    diagnosis = diagnose(found.links, found.planned)
    assert {(node.rank, node.direction) for node in diagnosis.nodes} == {(123, "both"), (250, "receives")}
    assert [tuple(sorted((slow.a, slow.b))) for slow in diagnosis.links] == [link]
    # one node was lost before the plan was made, so its groups of neighbours are not quite those of the network
    (way_out,) = diagnosis.ways_out
    assert len(set(way_out.ranks) & set(split(range(count))[group])) > len(way_out.ranks) / 2


@pytest.mark.parametrize("count", [3, 6, 16, 40])
def test_one_slow_direction_is_named_as_such(count: int) -> None:
    found, _ = played(count, Faults(slow_senders={1: 0.2}))
    (node,) = diagnose(found.links).nodes
    assert (node.rank, node.direction) == (1, "sends")
    assert node.rate == pytest.approx(0.2 * 1.25e9, rel=0.2)


def test_one_slow_direction_of_one_link_is_named() -> None:
    found, _ = played(6, Faults(slow_links={(2, 4): 0.1}))
    (slow,) = diagnose(found.links).links
    assert (slow.a, slow.b, slow.both_ways) == (2, 4, False)
    assert diagnose(found.links).nodes == ()


def test_of_two_nodes_the_link_is_named_and_nobody_is_blamed() -> None:
    found, _ = played(2, Faults(slow_senders={1: 0.2}))
    diagnosis = diagnose(found.links)
    assert diagnosis.nodes == ()
    assert [(slow.a, slow.b) for slow in diagnosis.links] == [(1, 0)]


@pytest.mark.parametrize("count", [4, 9, 60])
def test_a_node_whose_story_fits_nobody_elses_is_left_out(count: int) -> None:
    found, _ = played(count, Faults(liars=frozenset({2})))
    assert set(found.lost) == {2}
    assert "node 2" in found.lost[2]
    assert all(2 not in link.ends for link in found.links)
    assert diagnose(found.links).nodes == ()


def test_a_dead_and_a_stopped_node_cost_one_deadline_together() -> None:
    healthy, quiet = played(8)
    found, network = played(8, Faults(dead_at={3: IN_THE_ROUNDS}, frozen_at={5: IN_THE_ROUNDS}))
    assert set(found.lost) == {3, 5}
    assert network.now() <= quiet.now() + LIMITS.round
    pairs = {frozenset(link.ends) for link in found.links if not {3, 5} & set(link.ends)}
    assert len(pairs) == math.comb(6, 2)
    assert found.sweep is not None
    assert found.sweep["world_size"] == 6
    assert healthy.sweep is not None


def test_nodes_that_never_come_are_named_after_the_limit() -> None:
    found, network = played(4, Faults(dead_at={2: 0.0}))
    assert set(found.lost) == {2}
    assert set(found.profiles) == {0, 1, 3}
    assert network.now() < LIMITS.arrive + LIMITS.gather


def test_everything_is_told_as_it_comes() -> None:
    told: list[str] = []
    found, _ = played(4, Faults(dead_at={2: IN_THE_ROUNDS}), note=lambda kind, content: told.append(kind))
    assert told.count("node") == 4
    assert told.count("link") == len(found.links)
    assert told.count("lost") == 1
    assert told[-1] == "sweep"


def test_an_answer_that_is_no_profile_is_named() -> None:
    network = SimulatedNetwork(3, document='{"nodes": []}')
    found = Conductor(network, 3, LIMITS).run()
    assert set(found.lost) == {0, 1, 2}
    assert all("profile" in reason for reason in found.lost.values())
    assert not found.links
