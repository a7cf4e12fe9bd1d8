from __future__ import annotations

import math

import pytest
from time_cases import cluster, gpu, nodes

from stratadvisor.costs import constants
from stratadvisor.costs.collectives import (
    Group,
    _interpolate_sweep,
    all_gather_seconds,
    all_reduce_seconds,
    broadcast_seconds,
    inter_node_bandwidth,
    intra_node_bandwidth,
    reduce_scatter_seconds,
)

A100 = gpu("A100-80GB")
GIB = 2.0**30


def test_a_ring_inside_a_node_moves_twice_the_message_but_one_part() -> None:
    at = cluster(nodes(A100, 1, 8))
    # 8 ranks: every rank sends 2 * 7/8 of the message at 200 GB/s, once the message is large
    large = 1e6 * GIB
    assert all_reduce_seconds(large, Group(num_nodes=1, ranks_per_node=8), at) == pytest.approx(1.75 * large / 200e9)


# stas00/ml-engineering network/README.md, nccl-tests over 8 H200: message, microseconds
@pytest.mark.parametrize(
    ("mebibytes", "microseconds"),
    [(1, 46), (4, 68), (16, 134), (64, 339), (256, 1077), (1024, 4053), (16384, 62341)],
)
def test_published_all_reduces_inside_a_node_are_met(mebibytes: int, microseconds: int) -> None:
    node = nodes(A100, 1, 8, intra_node_bytes_per_second=482e9, intra_node_latency_seconds=35e-6)
    seconds = all_reduce_seconds(mebibytes * 2.0**20, Group(num_nodes=1, ranks_per_node=8), cluster(node))
    assert seconds == pytest.approx(microseconds * 1e-6, rel=0.12)


def test_gather_and_scatter_are_half_a_reduction() -> None:
    at, group = cluster(nodes(A100, 1, 8)), Group(num_nodes=1, ranks_per_node=8)
    whole = all_reduce_seconds(GIB, group, at)
    assert all_gather_seconds(GIB, group, at) + reduce_scatter_seconds(GIB, group, at) == pytest.approx(whole)


def test_across_nodes_the_slower_level_sets_the_time() -> None:
    at = cluster(nodes(A100, 4, 8), inter_node_bytes_per_second=10e9)
    half = constants.NVLINK_HALF_MESSAGE_BYTES
    assert 2 * 7 / 8 * half / 200e9 > constants.NVLINK_RAMP_SECONDS  # here the limit of the ramp counts
    inside = 2 * 7 / 8 * GIB / 200e9 + constants.NVLINK_RAMP_SECONDS * GIB / (GIB + half)
    between = 2 * 3 / 4 * GIB / 10e9  # the node's ranks carry an eighth each and share its network
    part = GIB / 8
    between *= 1 + constants.RING_HALF_MESSAGE_BYTES / (part + constants.RING_HALF_MESSAGE_BYTES)
    expected = between + constants.LEVELS_IN_SERIES * inside
    assert all_reduce_seconds(GIB, Group(num_nodes=4, ranks_per_node=8), at) == pytest.approx(expected)


def test_groups_that_share_a_nodes_network_wait_for_each_other() -> None:
    at = cluster(nodes(A100, 2, 8), inter_node_bytes_per_second=1e9)
    alone = all_reduce_seconds(GIB, Group(num_nodes=2, ranks_per_node=1), at)
    shared = all_reduce_seconds(GIB, Group(num_nodes=2, ranks_per_node=1, groups_per_node=8), at)
    assert shared == pytest.approx(8 * alone)


def test_gigabits_are_eight_times_slower_than_gigabytes() -> None:
    group = Group(num_nodes=2, ranks_per_node=1)
    one = nodes(A100, 2, 1)
    fast = all_reduce_seconds(GIB, group, cluster(one, inter_node_bytes_per_second=100e9))
    slow = all_reduce_seconds(GIB, group, cluster(one, inter_node_bytes_per_second=100e9 / 8))
    assert slow == pytest.approx(8 * fast)


def test_one_rank_and_empty_messages_cost_nothing() -> None:
    at = cluster(nodes(A100, 1, 8))
    assert all_reduce_seconds(GIB, Group(num_nodes=1, ranks_per_node=1), at) == 0
    assert all_reduce_seconds(0, Group(num_nodes=1, ranks_per_node=8), at) == 0
    assert broadcast_seconds(GIB, Group(num_nodes=1, ranks_per_node=1), at) == 0
    late = cluster(nodes(A100, 1, 8, intra_node_latency_seconds=1e-5))
    assert broadcast_seconds(0, Group(num_nodes=1, ranks_per_node=8), late) == 0
    assert broadcast_seconds(1, Group(num_nodes=1, ranks_per_node=2), late) == pytest.approx(1e-5 + 1 / 200e9)


def test_a_measured_sweep_is_returned_at_its_points_and_scaled_to_other_ranks() -> None:
    sweep = ((1024.0, 1e-4), (2.0**20, 1e-3), (2.0**24, 1e-2))
    at = cluster(nodes(A100, 1, 8), intra_node_sweep=sweep, intra_node_sweep_ranks=2, backend="gloo")
    for size, seconds in sweep:
        assert all_reduce_seconds(size, Group(num_nodes=1, ranks_per_node=2), at) == pytest.approx(seconds)
    between = all_reduce_seconds(2.0**22, Group(num_nodes=1, ranks_per_node=2), at)
    assert between == pytest.approx((1e-3 * 1e-2) ** 0.5)  # halfway on both logarithmic axes
    # twice the largest: in proportion
    assert all_reduce_seconds(2.0**25, Group(num_nodes=1, ranks_per_node=2), at) == pytest.approx(2e-2)
    # 4 ranks: fixed part times 3 hops for 1, the rest times (2 * 3/4) / (2 * 1/2)
    four = all_reduce_seconds(2.0**24, Group(num_nodes=1, ranks_per_node=4), at)
    assert four == pytest.approx(3 * 1e-4 + (1e-2 - 1e-4) * 1.5)


def test_latency_grows_with_the_tree_over_nccl_and_with_the_ring_over_gloo() -> None:
    node = nodes(A100, 1, 64, intra_node_latency_seconds=1e-5)
    tiny = 1e-6
    over_nccl = all_reduce_seconds(tiny, Group(num_nodes=1, ranks_per_node=64), cluster(node))
    over_gloo = all_reduce_seconds(tiny, Group(num_nodes=1, ranks_per_node=64), cluster(node, backend="gloo"))
    assert over_nccl == pytest.approx(1e-5 * 2)  # log2(64) / log2(8)
    assert over_gloo == pytest.approx(1e-5 * 9)  # 63 / 7 hops


def test_declared_rates_are_not_fully_reached_and_unknown_ones_are_said() -> None:
    node = nodes(A100, 2, 8, origins={"intra_node_bytes_per_second": "declared"})
    at = cluster(node, origins={"inter_node_bytes_per_second": "declared"})
    assert inter_node_bandwidth(at) == (100e9 * constants.DECLARED_NETWORK_SHARE, "")
    assert intra_node_bandwidth(at) == (200e9 * constants.DECLARED_INTRA_SHARE, "")
    blind = cluster(nodes(A100, 2, 8, intra_node_bytes_per_second=None), inter_node_bytes_per_second=None)
    assert "unknown" in inter_node_bandwidth(blind)[1]
    assert "unknown" in intra_node_bandwidth(blind)[1]
    assert inter_node_bandwidth(blind)[0] < inter_node_bandwidth(at)[0]


def test_of_two_sizes_that_only_rounding_tells_apart_the_slower_counts() -> None:
    size = 2.0**20
    sweep = ((1024.0, 1e-4), (math.nextafter(size, 0.0), 3e-3), (size, 1e-3), (2.0**24, 1e-2))
    assert _interpolate_sweep(sweep, size) == 3e-3
