"""Profile to planning view."""

from __future__ import annotations

import pytest

from stratadvisor.derive.cluster import planning_cluster, planning_view
from stratadvisor.schema.base import measured, reported, unknown
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    DeviceLink,
    DeviceProfile,
    NicProfile,
    NodeProfile,
    SpeedOverTime,
    SweepPoint,
)

GIB = 2**30


def gpu(
    index: int, name: str = "NVIDIA A100-SXM4-80GB", *, speed: float | None = None, **more: object
) -> DeviceProfile:
    fields: dict[str, object] = {
        "index": index,
        "kind": "cuda",
        "name": name,
        "catalog_key": None,
        "memory_total_bytes": reported(80 * GIB),
        "memory_free_bytes": reported(79 * GIB),
    }
    if speed is not None:
        fields["matmul_flops_per_second"] = {"bf16": measured(speed)}
    return DeviceProfile.model_validate(fields | more)


def node(name: str, *devices: DeviceProfile, **more: object) -> NodeProfile:
    return NodeProfile.model_validate({"hostname": name, "devices": devices, **more})


def test_alike_nodes_are_one_class_and_a_slow_one_is_its_own():
    nodes = [node(f"n{i}", gpu(0, speed=250e12), gpu(1, speed=s)) for i, s in enumerate((250e12, 245e12, 150e12))]
    cluster = planning_cluster(ClusterProfile(nodes=tuple(nodes)))
    found = {c.hostnames: c.device.measured_flops_per_second["bf16"] for c in cluster.classes}
    assert set(found) == {("n2",), ("n1", "n0")} or set(found) == {("n2",), ("n0", "n1")}
    assert found[("n2",)] == 200e12  # the median of its 250 and 150


def test_nodes_that_vary_as_much_as_they_differ_are_one_class():
    def two(variation: float) -> list[tuple[str, ...]]:
        nodes = tuple(
            node(name, gpu(0, speed=speed), speed_variation=measured(variation))
            for name, speed in (("a", 1.0), ("b", 1.15))
        )
        return [c.hostnames for c in planning_cluster(ClusterProfile(nodes=nodes)).classes]

    assert two(0.02) == [("a",), ("b",)]
    assert two(0.2) == [("a", "b")]


CHANGES = {
    "levels": [{"time_share": 0.5, "relative_speed": 0.46}, {"time_share": 0.5, "relative_speed": 1.54}],
    "phase_seconds": 1.0,
    "watched_seconds": 6.0,
}


def test_a_node_whose_speed_changes_is_a_class_of_its_own_and_is_named():
    steady = node("a", gpu(0, speed=1.0))
    changing = [
        node(name, gpu(0, speed=1.0), gpu(1, speed=1.0, speed_over_time=CHANGES), speed_variation=measured(0.54))
        for name in ("b", "c")
    ]
    two = [node("d", gpu(0, speed=1.0), gpu(1, speed=1.0))]
    view = planning_view(ClusterProfile(nodes=(steady, *changing[:1], *two)))
    found = {c.hostnames: (c.speed_levels, c.speed_phase_seconds) for c in view.cluster.classes}
    assert found == {
        ("a",): ((), 0.0),
        ("b",): (((0.5, 0.46), (0.5, 1.54)), 1.0),  # its steady device waits for the other
        ("d",): ((), 0.0),
    }
    assert view.warnings == (
        "b runs at 30% of its speed for 50% of the time (in phases of 1.0 s); plans take it to go on",
    )
    both = planning_view(ClusterProfile(nodes=tuple(changing)))
    assert [c.hostnames for c in both.cluster.classes] == [("b", "c")]
    assert both.warnings[2] == "nodes whose speed changes are taken to do so independently of each other"
    many = planning_view(
        ClusterProfile(nodes=tuple(changing[0].model_copy(update={"hostname": f"n{i}"}) for i in range(9)))
    )
    assert many.warnings[8] == "the speed of 1 more nodes changes like this"


@pytest.mark.parametrize(
    "levels",
    [
        [(0.5, 1.0), (0.4, 1.0)],  # a tenth of the time is missing
        [(0.5, 0.5), (0.5, 1.0)],  # the mean is not the mean
        [(1.0, 1.0)],
    ],
)
def test_levels_that_cannot_be_are_refused(levels):
    given = [{"time_share": share, "relative_speed": speed} for share, speed in levels]
    with pytest.raises(ValueError, match=r"add up to 1|at least 2"):
        gpu(0, speed_over_time={**CHANGES, "levels": given})


def test_what_a_file_rounded_is_made_whole():
    over = SpeedOverTime.model_validate(
        {
            **CHANGES,
            "levels": [{"time_share": 0.33, "relative_speed": 0.5}, {"time_share": 0.66, "relative_speed": 1.25}],
        }
    )
    shares = over.shares
    assert sum(share for share, _ in shares) == pytest.approx(1.0)
    assert sum(share * speed for share, speed in shares) == pytest.approx(1.0)


def test_a_node_with_a_slow_measured_connection_is_a_class_of_its_own():
    def classes(*rates: object) -> list[tuple[str, ...]]:
        nodes = tuple(node(f"n{i}", gpu(0, speed=1.0), network_bytes_per_second=rate) for i, rate in enumerate(rates))
        return [c.hostnames for c in planning_cluster(ClusterProfile(nodes=nodes)).classes]

    assert classes(measured(1.2e8), measured(1.2e7), measured(1.1e8)) == [("n1",), ("n2", "n0")]
    # what drivers state is no reason: they state what they like
    assert classes(reported(1.25e9), reported(1.25e8)) == [("n0", "n1")]


def test_free_memory_is_the_tightest_of_the_class():
    nodes = (
        node("a", gpu(0), gpu(1, memory_free_bytes=reported(60 * GIB))),
        node("b", gpu(0), gpu(1)),
    )
    cluster = planning_cluster(ClusterProfile(nodes=nodes))
    assert cluster.classes[0].device.memory_free_bytes == 60 * GIB


def test_unknown_memory_of_an_unlisted_device_stays_unknown():
    device = gpu(0, "Mystery 3000", memory_total_bytes=unknown("denied"), memory_free_bytes=unknown("denied"))
    cluster = planning_cluster(ClusterProfile(nodes=(node("a", device),)))
    assert cluster.classes[0].device.memory_total_bytes is None
    assert cluster.classes[0].device.peak_flops_per_second == {}
    assert cluster.classes[0].device.origins["memory_total_bytes"] == "unknown"


def test_a_dead_device_is_left_out_and_named():
    sick = gpu(1, healthy=False, health_reason="GPU is lost (Xid 79)")
    view = planning_view(ClusterProfile(nodes=(node("a", gpu(0), sick),)))
    assert view.cluster.num_devices == 1
    assert any("a device 1" in w and "Xid 79" in w for w in view.warnings)


def test_a_node_without_devices_is_left_out():
    view = planning_view(ClusterProfile(nodes=(node("a", gpu(0)), node("empty"))))
    assert view.cluster.num_nodes == 1
    assert any("empty" in w for w in view.warnings)


def test_mixed_cards_in_a_node_are_planned_as_the_weakest():
    small = gpu(1, "NVIDIA A100-SXM4-40GB", memory_total_bytes=reported(40 * GIB), memory_free_bytes=reported(39 * GIB))
    view = planning_view(ClusterProfile(nodes=(node("a", gpu(0), small),)))
    assert view.cluster.classes[0].device.memory_free_bytes == 39 * GIB
    assert any("mixes devices" in w for w in view.warnings)


def test_a_reported_rate_between_nodes_is_said_to_be_reported():
    nic = NicProfile(name="ib0", kind="infiniband", up=True, rate_bytes_per_second=reported(25e9))
    docker = NicProfile(name="docker0", kind="virtual", up=True, rate_bytes_per_second=reported(1e12))
    nodes = tuple(node(n, gpu(0), nics=(nic, docker)) for n in "ab")
    view = planning_view(ClusterProfile(nodes=nodes))
    assert view.cluster.inter_node_bytes_per_second == 25e9
    assert view.cluster.origins["inter_node_bytes_per_second"] == "reported"
    assert any("report" in a for a in view.assumptions)


def test_a_measured_sweep_beats_what_interfaces_report():
    nic = NicProfile(name="eth0", kind="ethernet", up=True, rate_bytes_per_second=reported(1.25e9))
    sweep = CollectiveSweep(
        operation="all_reduce",
        scope="inter_node",
        backend="nccl",
        world_size=2,
        num_nodes=2,
        points=(
            SweepPoint(
                message_bytes=2**20,
                seconds=0.1,
                algorithm_bandwidth_bytes_per_second=1.2e7,
                bus_bandwidth_bytes_per_second=1.2e7,
            ),
        ),
        latency_seconds=measured(1e-4),
        bus_bandwidth_bytes_per_second=measured(1.2e7),
    )
    nodes = tuple(node(n, gpu(0), nics=(nic,)) for n in "ab")
    cluster = planning_cluster(ClusterProfile(nodes=nodes, collectives=(sweep,)))
    assert cluster.inter_node_bytes_per_second == 1.2e7
    assert cluster.inter_node_latency_seconds == 1e-4


def test_one_pair_without_nvlink_makes_collectives_cross_pcie():
    links = (
        DeviceLink(device_a=0, device_b=1, kind="nvlink"),
        DeviceLink(device_a=0, device_b=2, kind="host_bridge"),
    )
    mixed = node("a", gpu(0), gpu(1), gpu(2), links=links)
    joined = node("a", gpu(0), gpu(1), links=links[:1])
    slow = planning_cluster(ClusterProfile(nodes=(mixed,))).classes[0]
    fast = planning_cluster(ClusterProfile(nodes=(joined,))).classes[0]
    assert (slow.nvlink, fast.nvlink) == (False, True)
    assert slow.intra_node_bytes_per_second is not None
    assert fast.intra_node_bytes_per_second is not None
    assert slow.intra_node_bytes_per_second < fast.intra_node_bytes_per_second


@pytest.mark.parametrize(("reached", "direct"), [(False, False), (True, True), (None, True)])
def test_cards_that_cannot_reach_each_other_stage_what_they_exchange(reached: bool | None, direct: bool) -> None:
    pair = DeviceLink(device_a=0, device_b=1, kind="host_bridge", peer_access=reached)
    box = node("a", gpu(0), gpu(1), links=(pair,))
    (found,) = planning_cluster(ClusterProfile(nodes=(box,))).classes
    assert found.peer_access is direct


def test_renaming_hosts_changes_names_only():
    one = planning_cluster(ClusterProfile(nodes=(node("a", gpu(0)), node("b", gpu(0)))))
    two = planning_cluster(ClusterProfile(nodes=(node("x", gpu(0)), node("y", gpu(0)))))
    assert [(c.name, c.num_nodes, c.device) for c in one.classes] == [
        (c.name, c.num_nodes, c.device) for c in two.classes
    ]


def within(rate: float | None, latency: float | None) -> CollectiveSweep:
    return CollectiveSweep(
        operation="all_reduce",
        scope="intra_node",
        backend="nccl",
        world_size=2,
        num_nodes=1,
        points=(
            SweepPoint(
                message_bytes=2**20,
                seconds=0.1,
                algorithm_bandwidth_bytes_per_second=1e7,
                bus_bandwidth_bytes_per_second=1e7,
            ),
        ),
        latency_seconds=unknown("too short") if latency is None else measured(latency),
        bus_bandwidth_bytes_per_second=unknown("too short") if rate is None else measured(rate),
    )


def test_a_measured_sweep_inside_a_node_beats_what_the_card_usually_has():
    pair = node("a", gpu(0), gpu(1))
    plain = planning_cluster(ClusterProfile(nodes=(pair,))).classes[0]
    swept = planning_cluster(ClusterProfile(nodes=(pair,), collectives=(within(5e9, 7e-5),))).classes[0]
    assert (swept.intra_node_bytes_per_second, swept.intra_node_latency_seconds) == (5e9, 7e-5)
    assert swept.origins["intra_node_bytes_per_second"] == "measured"
    lacking = planning_cluster(ClusterProfile(nodes=(pair,), collectives=(within(None, None),))).classes[0]
    assert lacking.intra_node_bytes_per_second == plain.intra_node_bytes_per_second
    assert lacking.intra_node_latency_seconds == plain.intra_node_latency_seconds
