from __future__ import annotations

from dataclasses import replace

from planning_clusters import GIGABIT, cluster, gpu, nodes

from stratadvisor.strategies.selections import (
    MAX_CLASSES_TRIED,
    MAX_HALVINGS,
    Selection,
    device_rate,
    nearest_sharing,
    part_of,
    selections,
    single_devices,
    spanning,
)

A100, V100, H100 = gpu("A100-80GB"), gpu("V100-32GB"), gpu("H100")


def counted(selection: Selection) -> list[tuple[str, int, int]]:
    return [(c.name, c.num_nodes, c.devices_per_node) for c in selection.cluster.classes]


def test_the_whole_cluster_comes_first_and_has_no_name() -> None:
    first = selections(cluster(nodes(V100), nodes(A100), between=1e9))[0]
    assert first.name == ""
    assert counted(first) == [("8xV100-32GB", 1, 8), ("8xA100-80GB", 1, 8)]


def test_fast_classes_are_tried_without_the_slow_ones() -> None:
    found = [counted(s) for s in selections(cluster(nodes(V100), nodes(H100), nodes(A100), between=1e9))]
    names = [tuple(sorted(name for name, _, _ in part)) for part in found]
    assert device_rate(nodes(H100)) > device_rate(nodes(A100)) > device_rate(nodes(V100))
    assert ("8xA100-80GB", "8xH100") in names
    assert ("8xH100",) in names
    assert ("8xV100-32GB", "8xH100") not in names


def test_fewer_nodes_and_fewer_devices_are_tried_by_halves() -> None:
    found = [counted(s)[0][1:] for s in selections(cluster(nodes(A100, count=8), between=1e10))]
    assert found == [(8, 8), (4, 8), (2, 8), (1, 8), (1, 4), (1, 2)]


def test_the_number_of_selections_does_not_grow_with_the_cluster() -> None:
    small = selections(cluster(nodes(A100, count=60), nodes(V100, count=60), between=1e10))
    huge = selections(cluster(nodes(A100, count=6000), nodes(V100, count=6000), between=1e10))
    assert len(huge) == len(small)


def test_a_part_without_slow_ports_has_the_faster_network() -> None:
    slow, fast = nodes(V100, network=GIGABIT), nodes(A100, count=2, network=100 * GIGABIT)
    whole = cluster(slow, fast, between=GIGABIT)
    assert part_of(whole, (fast.name,)).inter_node_bytes_per_second == 100 * GIGABIT
    assert part_of(whole, (slow.name,)).inter_node_bytes_per_second == GIGABIT


def test_a_slow_fabric_stays_slow_for_every_part() -> None:
    classes = nodes(V100, network=10 * GIGABIT), nodes(A100, count=2, network=100 * GIGABIT)
    whole = cluster(*classes, between=GIGABIT)
    assert part_of(whole, (classes[1].name,)).inter_node_bytes_per_second == GIGABIT


def test_a_batch_that_all_cannot_share_goes_to_the_most_that_can() -> None:
    whole = selections(cluster(nodes(A100, count=3), between=1e10))[0]
    nearest = nearest_sharing(whole, 64)
    assert nearest is not None
    # 24 devices cannot share 64; 16 can, as two whole nodes
    assert counted(nearest) == [("8xA100-80GB", 2, 8)]
    odd = nearest_sharing(whole, 7)
    assert odd is not None
    assert odd.cluster.num_devices == 7


def test_a_mixed_selection_has_no_nearest_part() -> None:
    assert nearest_sharing(selections(cluster(nodes(A100), nodes(V100), between=1e9))[0], 7) is None


def test_single_devices_are_one_of_each_class_fastest_first() -> None:
    found = single_devices(cluster(nodes(V100), nodes(A100), between=1e9))
    assert [counted(s) for s in found] == [[("8xA100-80GB", 1, 1)], [("8xV100-32GB", 1, 1)]]


def test_spanning_selections_have_several_nodes_where_there_are() -> None:
    assert all(s.cluster.num_nodes > 1 for s in spanning(cluster(nodes(A100), nodes(V100), between=1e9)))
    assert spanning(cluster(nodes(A100)))[0].cluster.num_devices == 8


def test_hostnames_are_those_of_the_nodes_kept() -> None:
    names = ("a", "b", "c", "d")
    half = selections(cluster(nodes(A100, count=4, hostnames=names), between=1e10))[1]
    assert half.cluster.classes[0].hostnames == ("a", "b")


def test_a_batch_that_all_can_share_leaves_the_selection_as_it_is() -> None:
    whole = selections(cluster(nodes(A100, count=2), between=1e10))[0]
    assert nearest_sharing(whole, 32) is whole


def test_of_many_classes_only_the_first_few_are_combined() -> None:
    # seven speeds: alike cards whose rates differ
    classes = [
        nodes(replace(A100, name=f"card {i}", measured_flops_per_second={"bf16": i * 1e13})) for i in range(1, 8)
    ]
    found = [counted(s) for s in selections(cluster(*classes, between=1e10))]
    lengths = {len(part) for part in found}
    assert lengths == {1, 2, 3, 4, 5, 6, 7}
    assert MAX_CLASSES_TRIED == 6
    # the slowest is tried in the whole cluster alone, never by itself
    assert [("8xcard 1", 1, 8)] not in found
    assert [("8xcard 2", 1, 8)] in found


def test_a_node_is_halved_a_few_times_only() -> None:
    found = [counted(s)[0][1:] for s in selections(cluster(nodes(A100, per_node=64)))]
    assert found == [(1, 64), (1, 32), (1, 16), (1, 8), (1, 4)]
    assert MAX_HALVINGS == 4
