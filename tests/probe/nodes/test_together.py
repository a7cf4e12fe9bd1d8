"""From what came together to the profile, and what people are told of it."""

from dataclasses import replace

import pytest

from stratadvisor.probe.nodes.conductor import Found
from stratadvisor.probe.nodes.measured import Link
from stratadvisor.probe.nodes.messages import Hello
from stratadvisor.probe.nodes.together import MOST_PAIRS, cluster_profile
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.profile import ClusterProfile, NicProfile, NodeProfile, Verdict

GIGABIT = 1e9 / 8


def link(a: int, b: int, forward: float = GIGABIT, backward: float | None = None, **more: object) -> Link:
    fields: dict[str, object] = {
        "round": 0,
        "kind": "all",
        "a": a,
        "b": b,
        "forward": forward,
        "backward": forward if backward is None else backward,
        "latency_seconds": 1e-5,
        "interfaces": ("eth0", "eth0"),
    }
    return Link(**{**fields, **more})  # type: ignore[arg-type]


def nic(name: str, kind: str = "ethernet", rate: float | None = 10 * GIGABIT, *addresses: str) -> NicProfile:
    reading = unknown("none") if rate is None else reported(rate)
    return NicProfile.model_validate(
        {"name": name, "kind": kind, "rate_bytes_per_second": reading, "up": True, "addresses": addresses}
    )


def found(*links: Link, nics: tuple[NicProfile, ...] = (), count: int = 3, **more: object) -> Found:
    profiles = {rank: ClusterProfile(nodes=(NodeProfile(hostname=f"h{rank}", nics=nics),)) for rank in range(count)}
    hellos = {rank: Hello(rank=rank, hostname=f"h{rank}") for rank in range(count)}
    return Found(
        profiles=profiles,
        hellos=hellos,
        links=list(links),
        planned=tuple(range(count)),
        **more,  # type: ignore[arg-type]
    )


def verdict(profile: ClusterProfile, word: str) -> Verdict:
    (one,) = [v for v in profile.verdicts if word in v.message]
    return one


SLOW_THIRD = (link(0, 1), link(0, 2, GIGABIT / 10), link(1, 2, GIGABIT / 10))


def test_a_slow_interface_is_named_with_what_its_driver_states() -> None:
    stated = (10 * GIGABIT, 10 * GIGABIT)
    profile = cluster_profile(found(*(replace(each, stated=stated) for each in SLOW_THIRD)))
    slow = verdict(profile, "slow connection")
    assert (slow.subject, slow.level) == ("h2 eth0", "problem")
    assert "10% of the" in slow.message
    assert "bad" in slow.message
    assert "driver states 1.25 GB/s" in slow.message
    assert slow.advice
    # the others are equal, and yet at a tenth of what their drivers state
    rest = verdict(profile, "reported 1.25 GB/s, measured 125 MB/s")
    assert "h0" in rest.subject
    assert "h1" in rest.subject
    assert "h2" not in rest.subject
    assert [node.network_bytes_per_second.value for node in profile.nodes] == [GIGABIT, GIGABIT, GIGABIT / 10]
    assert all(node.network_bytes_per_second.origin == "measured" for node in profile.nodes)


def test_an_interface_that_is_slower_by_its_own_word_is_no_fault() -> None:
    links = [replace(each, stated=(GIGABIT, GIGABIT / 10 if each.b == 2 else GIGABIT)) for each in SLOW_THIRD]
    slow = verdict(cluster_profile(found(*links)), "slow connection")
    assert slow.level == "warning"
    assert "a slower one" in slow.message


def test_a_slow_direction_says_which() -> None:
    links = [link(0, 1), link(0, 2, GIGABIT, GIGABIT / 5), link(1, 2, GIGABIT, GIGABIT / 5)]
    slow = verdict(cluster_profile(found(*links)), "slow connection")
    assert slow.level == "problem"
    assert "it sends is slow" in slow.advice


def test_a_slow_pair_is_named_and_its_nodes_are_not() -> None:
    links = [link(a, b) for a in range(4) for b in range(a) if {a, b} != {1, 3}] + [link(1, 3, GIGABIT / 2)]
    profile = cluster_profile(found(*links, count=4))
    slow = verdict(profile, "slow link")
    assert (slow.subject, slow.level) == ("h1 and h3", "warning")
    assert "50% of the 125 MB/s" in slow.message
    assert not [v for v in profile.verdicts if "slow connection" in v.message]


def test_what_is_in_order_is_called_normal() -> None:
    stated = (GIGABIT, GIGABIT)
    profile = cluster_profile(found(*(link(a, b, 0.95 * GIGABIT, stated=stated) for a, b in ((0, 1), (0, 2), (1, 2)))))
    normal = verdict(profile, "normal")
    assert normal.level == "info"
    assert "3 nodes" in normal.message
    assert "drivers state 125 MB/s" in normal.message
    assert len(profile.node_pairs) == 3


@pytest.mark.parametrize(("kind", "level"), [("ethernet", "warning"), ("infiniband", "info")])
def test_traffic_beside_the_fast_interface_is_told(kind: str, level: str) -> None:
    nics = (nic("eth0", rate=GIGABIT), nic("fast0", kind, 100 * GIGABIT))
    links = [link(a, b, stated=(GIGABIT, GIGABIT)) for a, b in ((0, 1), (0, 2), (1, 2))]
    profile = cluster_profile(found(*links, nics=nics))
    beside = verdict(profile, "though the faster fast0 is up")
    assert beside.level == level
    assert "fast0" in beside.advice
    # TCP over Ethernet says nothing of an RDMA fabric: nothing measured stands for it
    measured_ones = {node.network_bytes_per_second.origin == "measured" for node in profile.nodes}
    assert measured_ones == {kind == "ethernet"}


def test_bridges_that_every_node_has_are_told_from_networks() -> None:
    nics = (nic("docker0", "virtual", None, "172.17.0.1"), nic("lo", "loopback", None, "127.0.0.1"))
    profile = cluster_profile(found(link(0, 1), link(0, 2), link(1, 2), nics=nics))
    bridge = verdict(profile, "a bridge of containers")
    assert (bridge.subject, bridge.level) == ("docker0", "info")
    assert "3 nodes" in bridge.message


def test_a_name_that_leads_to_the_loopback_is_told() -> None:
    gathered = found(link(0, 1), link(0, 2), link(1, 2))
    gathered.hellos[1] = Hello(rank=1, hostname="h1", name_is_loopback=True)
    told = verdict(cluster_profile(gathered), "loopback")
    assert (told.subject, told.level) == ("h1", "warning")
    assert "GLOO_SOCKET_IFNAME" in told.advice


def test_who_was_lost_is_named_in_verdicts_and_observations() -> None:
    gathered = found(link(0, 1), lost={2: "while it measured itself: its process has ended", 3: "it did not come"})
    gathered.links.append(link(0, 2, GIGABIT / 10))  # it was lost after it had handed over its profile
    gathered.labels = {3: "node4"}
    profile = cluster_profile(gathered)
    assert [node.hostname for node in profile.nodes] == ["h0", "h1"]
    assert [(pair.a, pair.b) for pair in profile.node_pairs] == [("h0", "h1")]
    assert not [v for v in profile.verdicts if "slow" in v.message]
    assert {v.subject for v in profile.verdicts if v.message.startswith("left out")} == {"h2", "node4"}
    assert {o.reason.partition(":")[0] for o in profile.observations if o.probe == "nodes"} == {"h2", "node4"}


def test_a_pair_that_came_to_nothing_is_told_unless_it_did_later() -> None:
    failed = [(0, 1, "no route to host"), (1, 2, "no route to host")]
    profile = cluster_profile(found(link(0, 2), link(1, 2), failed=failed))
    nothing = verdict(profile, "came to a result")
    assert nothing.subject == "h0 and h1"
    assert "no route to host" in nothing.message


def test_the_curve_is_that_of_the_pair_in_the_middle() -> None:
    # a message of m bytes takes alpha + m / rate
    alpha, sizes = 1e-4, (1000, 10_000, 100_000, 1_000_000)
    links = [
        link(a, b, rate, points=tuple((size, alpha + size / rate) for size in sizes))
        for (a, b), rate in (((0, 1), 1e8), ((0, 2), 2e8), ((1, 2), 4e8))
    ]
    (curve,) = cluster_profile(found(*links)).collectives
    assert (curve.operation, curve.scope, curve.num_nodes) == ("send_recv", "inter_node", 2)
    assert curve.latency_seconds.value == pytest.approx(alpha, rel=0.01)
    assert curve.bus_bandwidth_bytes_per_second.value == 2e8
    assert "h0 and h2" in curve.latency_seconds.detail


@pytest.mark.parametrize(("third", "carrier"), [("eth0", "eth0"), ("eth1", ""), ("", "")])
def test_the_interface_of_the_collective_is_told_where_it_is_the_same_everywhere(third: str, carrier: str) -> None:
    points = ((1024, 1e-4), (2**20, 1e-2))
    times = {"backend": "gloo", "world_size": 3, "points": points, "repetitions": (9, 3)}
    links = link(0, 1), link(1, 2, interfaces=("eth0", third)), link(0, 2, interfaces=("eth0", third))
    (sweep,) = cluster_profile(found(*links, sweep=times)).collectives
    assert sweep.interface == carrier


def test_of_thousands_of_pairs_the_slow_ones_are_kept() -> None:
    count = 60
    links = [link(a, b) for a in range(count) for b in range(a) if (a, b) != (40, 7)] + [link(40, 7, GIGABIT / 4)]
    assert len(links) > MOST_PAIRS
    profile = cluster_profile(found(*links, count=count))
    assert [(pair.a, pair.b) for pair in profile.node_pairs] == [("h40", "h7")]
