from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import Group
from stratadvisor.costs.span import relative_width
from stratadvisor.costs.work import place
from stratadvisor.schema.layout import Layout

A100 = gpu("A100-80GB")
NODES = nodes(A100, 4, 8)
PLAIN = cluster(NODES)
SWEPT = cluster(NODES, intra_node_sweep=((1.0, 1e-5), (1e6, 1e-3)))


@pytest.mark.parametrize(
    ("basis", "compute"),
    [("measured", fitted.SPAN_CATALOG), ("catalog", fitted.SPAN_CATALOG), ("assumed", fitted.SPAN_ASSUMED)],
)
def test_the_band_mixes_computation_and_communication_by_their_shares(basis: str, compute: float) -> None:
    assert relative_width(basis, 0.0, assumed=False, cluster=PLAIN) == pytest.approx(compute)
    mixed = relative_width(basis, 0.25, assumed=False, cluster=PLAIN)
    assert mixed == pytest.approx(0.75 * compute + 0.25 * fitted.SPAN_ASSUMED)
    guessed = relative_width(basis, 0.25, assumed=True, cluster=PLAIN)
    assert guessed == pytest.approx(0.75 * compute + 0.25 * 1.5 * fitted.SPAN_ASSUMED)
    # measured sweeps, of either level; communication is never known better than the computation it runs beside
    for swept in (SWEPT, cluster(NODES, inter_node_sweep=SWEPT.intra_node_sweep)):
        known = relative_width(basis, 0.25, assumed=False, cluster=swept)
        assert known == pytest.approx(0.75 * compute + 0.25 * max(compute, fitted.SPAN_MEASURED))


def test_a_measured_processor_keeps_its_doubt() -> None:
    over = replace(PLAIN, backend="gloo")
    assert relative_width("measured", 0.0, assumed=False, cluster=over) == fitted.SPAN_MEASURED


def test_an_earlier_run_holds_whatever_the_network_is() -> None:
    assert relative_width("calibrated", 0.9, assumed=True, cluster=PLAIN) == fitted.SPAN_CALIBRATED


def test_a_share_beyond_the_whole_counts_as_the_whole() -> None:
    assert relative_width("catalog", 1.5, assumed=False, cluster=PLAIN) == pytest.approx(fitted.SPAN_ASSUMED)
    assert relative_width("catalog", -0.5, assumed=False, cluster=PLAIN) == pytest.approx(fitted.SPAN_CATALOG)


def test_replicas_of_sharded_nodes_meet_once_for_every_rank_of_the_node() -> None:
    layout = Layout(
        engine="fsdp2", sharding="parameters", data_parallel_shard_degree=8, data_parallel_replicate_degree=4
    )
    found = place(layout, work(NODES))
    assert found.shard == Group(num_nodes=1, ranks_per_node=8, groups_per_node=1)
    assert found.replicate == Group(num_nodes=4, ranks_per_node=1, groups_per_node=8)
    assert found.data == Group(num_nodes=4, ranks_per_node=8, groups_per_node=1)
    assert (found.tensor.size, found.context.size) == (1, 1)
    assert (found.ranks_per_node, found.num_ranks) == (8, 32)


def test_half_a_node_shards_and_its_halves_share_the_network() -> None:
    layout = Layout(
        engine="fsdp2", sharding="parameters", data_parallel_shard_degree=4, data_parallel_replicate_degree=8
    )
    found = place(layout, work(NODES))
    assert found.shard == Group(num_nodes=1, ranks_per_node=4, groups_per_node=1)
    # 8 replicas, two in each node: four groups of this kind start in every node
    assert found.replicate == Group(num_nodes=4, ranks_per_node=2, groups_per_node=4)


def test_tensor_parallel_ranks_sit_side_by_side_then_context_then_data() -> None:
    layout = Layout(
        engine="megatron", tensor_parallel_degree=2, context_parallel_degree=2, data_parallel_replicate_degree=8
    )
    found = place(layout, work(NODES))
    assert found.tensor == Group(num_nodes=1, ranks_per_node=2)
    assert found.context == Group(num_nodes=1, ranks_per_node=2)
    # two data-parallel ranks a node, and four such groups in it
    assert found.data == Group(num_nodes=4, ranks_per_node=2, groups_per_node=4)


def test_context_that_does_not_fit_a_node_crosses_the_network_for_every_tensor_parallel_rank() -> None:
    layout = Layout(engine="megatron", tensor_parallel_degree=4, context_parallel_degree=8)
    found = place(layout, work(NODES))
    assert found.tensor == Group(num_nodes=1, ranks_per_node=4)
    assert found.context == Group(num_nodes=4, ranks_per_node=2, groups_per_node=4)
    assert found.data == Group(num_nodes=1, ranks_per_node=1)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "crosses"),
    [(2, 4, 1, False), (2, 4, 2, True), (1, 8, 1, False), (8, 2, 1, True), (4, 2, 4, True)],
)
def test_stages_cross_nodes_when_a_pipeline_is_larger_than_one(
    tensor: int, pipeline: int, data: int, crosses: bool
) -> None:
    layout = Layout(
        engine="megatron",
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=pipeline,
        data_parallel_replicate_degree=data,
    )
    assert place(layout, work(NODES)).stages_cross_nodes is crosses


def test_a_small_job_fills_part_of_the_largest_node() -> None:
    mixed = (*work(nodes(A100, 1, 2)), *work(NODES))
    assert place(Layout(engine="ddp", data_parallel_replicate_degree=4), mixed).data == Group(
        num_nodes=1, ranks_per_node=4
    )
    whole = place(Layout(engine="ddp", data_parallel_replicate_degree=34), mixed)
    assert (whole.ranks_per_node, whole.data) == (8, Group(num_nodes=5, ranks_per_node=8))


def test_part_of_a_micro_batch_is_part_of_the_work() -> None:
    whole = work(NODES, 4, 2)[0]
    assert whole.micro_batches == 2.0
    assert replace(whole, batch_per_device=6).micro_batches == 1.5


def test_tensor_parallel_groups_that_do_not_divide_a_node_leave_devices_of_it_to_the_next() -> None:
    layout = Layout(engine="megatron", tensor_parallel_degree=3, data_parallel_replicate_degree=4)
    found = place(layout, work(NODES))
    # two groups of three in a node of eight: four of them need two nodes, and three rings cross
    assert found.data == Group(num_nodes=2, ranks_per_node=2, groups_per_node=3)
    assert found.tensor == Group(num_nodes=1, ranks_per_node=3)
