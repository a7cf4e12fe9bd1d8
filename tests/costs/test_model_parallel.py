from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import Group, all_gather_seconds, all_reduce_seconds
from stratadvisor.costs.model_parallel import per_micro_batch_seconds, pipeline_seconds
from stratadvisor.costs.work import Placement, place
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

NODE = nodes(gpu("A100-80GB"), 2, 8, intra_node_latency_seconds=1e-5)
AT = cluster(NODE, inter_node_latency_seconds=3e-5)
MEGATRON = Layout(engine="megatron", sequence_length=2048)
MIXTURE = LLAMA_7B.model_copy(update={"num_experts": 8, "num_experts_per_token": 2, "num_dense_layers": 8})
GROUPED = LLAMA_7B.model_copy(update={"num_key_value_heads": 8})


def added(
    shape: ModelShape, layout: Layout, micro: int = 2, of: NodeClass = NODE, at: Cluster = AT
) -> tuple[float, float]:
    return per_micro_batch_seconds(shape, layout, at, place(layout, work(of)), micro)


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 4), ("selective", 4), ("full", 6)])
@pytest.mark.parametrize(("precision", "element"), [("bf16", 2), ("fp32", 4)])
def test_a_layer_reduces_its_activations_twice_forward_and_twice_backward(
    checkpointing: str, passes: int, precision: str, element: int
) -> None:
    layout = replace(
        MEGATRON,
        tensor_parallel_degree=8,
        activation_checkpointing=checkpointing,
        precision=precision,  # type: ignore[arg-type]
    )
    message = element * 2 * 2048 * 4096
    one = all_reduce_seconds(message, Group(num_nodes=1, ranks_per_node=8), AT)
    assert added(LLAMA_7B, layout) == pytest.approx((passes * 32 * one, passes * 32 * one))
    # a recipe that runs transfers beside the products shows a part of them
    all_seconds, shown = added(LLAMA_7B, replace(layout, compiled=True))
    assert all_seconds == pytest.approx(passes * 32 * one)
    assert shown == pytest.approx(all_seconds * fitted.TENSOR_PARALLEL_OVERLAPPED)


def test_a_stage_has_its_share_of_the_layers() -> None:
    layout = replace(MEGATRON, tensor_parallel_degree=4)
    whole = added(LLAMA_7B, layout)
    quarter = added(LLAMA_7B, replace(layout, pipeline_parallel_degree=4))
    assert quarter == pytest.approx((whole[0] / 4, whole[1] / 4))


def test_keys_and_values_of_the_whole_sequence_go_round_three_times() -> None:
    layout = replace(MEGATRON, context_parallel_degree=4, tensor_parallel_degree=2)
    # two tensors, 16 bit, 2 sequences of 2048 tokens, 8 heads of 128, half of them on each tensor-parallel rank
    keys = 2 * 2 * 2 * 2048 * 8 * 128 / 2
    context = 3 * 32 * all_gather_seconds(keys, Group(num_nodes=1, ranks_per_node=4), AT)
    message = 2 * 2 * 2048 / 4 * 4096
    tensor = 4 * 32 * all_reduce_seconds(message, Group(num_nodes=1, ranks_per_node=2), AT)
    expected = tensor + context, tensor + context * fitted.CONTEXT_PARALLEL_EXPOSED
    assert added(GROUPED, layout) == pytest.approx(expected)


def test_tokens_go_to_the_experts_of_other_ranks_and_come_back() -> None:
    layout = replace(MEGATRON, data_parallel_replicate_degree=8, expert_parallel_degree=4)
    # of two copies of each token three quarters go to other ranks, in the 24 layers that have experts
    sent = 2 * 2 * 2048 * 4096 * 2 * 3 / 4
    inside = 4 * 24 * (1e-5 + sent / 200e9)
    assert added(MIXTURE, layout) == pytest.approx((inside, inside))
    assert added(MIXTURE, replace(layout, activation_checkpointing="full"))[0] == pytest.approx(inside * 6 / 4)
    # 8 expert-parallel ranks fill one node alone
    copies = 2 * 2 * 2048 * 4096 * 2
    eight = replace(layout, data_parallel_replicate_degree=16, expert_parallel_degree=8)
    assert added(MIXTURE, eight)[0] == pytest.approx(4 * 24 * (1e-5 + copies * 7 / 8 / 200e9))
    # over 16, what is for the other node's half crosses the network at least, which the node's 8 ranks share; all that
    # is for others does at most
    wide = added(MIXTURE, replace(eight, expert_parallel_degree=16))[0]
    least, most = (4 * 24 * (3e-5 + 8 * copies * part / 100e9) for part in (8 / 16, 15 / 16))
    assert least * (1 - 1e-9) <= wide <= most * (1 + 1e-9)
    # with tensor parallelism beside them they need two nodes; each of the two ranks carries half of every token
    both = added(MIXTURE, replace(eight, data_parallel_replicate_degree=8, tensor_parallel_degree=2))[0]
    tensor = 4 * 32 * all_reduce_seconds(2 * 2 * 2048 * 4096, Group(num_nodes=1, ranks_per_node=2), AT)
    least, most = (tensor + 4 * 24 * (3e-5 + 8 * copies / 2 * part / 100e9) for part in (4 / 8, 7 / 8))
    assert least * (1 - 1e-9) <= both <= most * (1 + 1e-9)


def test_no_division_adds_nothing() -> None:
    assert added(LLAMA_7B, replace(MEGATRON, data_parallel_replicate_degree=16)) == (0.0, 0.0)


def piped(layout: Layout, shape: ModelShape = LLAMA_7B, head: float = 0.0, count: float = 8.0) -> tuple[float, float]:
    placement: Placement = place(layout, work(NODE))
    return pipeline_seconds(shape, layout, AT, placement, 1.0, head, 2, count)


@pytest.mark.parametrize(("chunks", "bubble"), [(1, 3.0), (2, 1.5), (4, 0.75)])
def test_even_stages_wait_for_fill_and_drain(chunks: int, bubble: float) -> None:
    # Megatron-LM, arXiv:2104.04473, section 2.2: (p - 1) / v passes
    layout = replace(MEGATRON, pipeline_parallel_degree=4, virtual_pipeline_chunks=chunks)
    assert piped(layout)[0] == pytest.approx(bubble)


def test_the_output_projection_sets_the_pace_when_it_stands_alone_on_even_stages() -> None:
    # every pass takes 1.25 s on the last stage; the others need 3 s to fill and drain it
    bubble, _ = piped(replace(MEGATRON, pipeline_parallel_degree=4), head=0.25)
    assert bubble == pytest.approx(3.0 + 8 * 0.25)


def test_the_fullest_of_uneven_stages_sets_the_pace() -> None:
    # 32 layers over 5 stages: 6.4 on average, 7 at most; of 6 on the last with the projection
    bubble, _ = piped(replace(MEGATRON, pipeline_parallel_degree=5), head=0.1)
    pace = max(7 / 6.4, 6 / 6.4 + 0.1)
    assert bubble == pytest.approx(5.1 - pace + 8 * (pace - 1))
    # stages of 9, 9, 9 and 5 layers, where 8 take a second: the last has room for the projection
    given = replace(MEGATRON, pipeline_parallel_degree=4, stage_layers=(9, 9, 9, 5))
    bubble, _ = piped(given, head=0.25)
    assert bubble == pytest.approx(4.25 - 9 / 8 + 8 * (9 / 8 - 1))
    bubble, _ = piped(given, head=0.75)
    assert bubble == pytest.approx(4.75 - (5 / 8 + 0.75) + 8 * (5 / 8 + 0.75 - 1))


def test_torchs_schedules_drain_after_every_local_batch() -> None:
    # 8 micro-batches in local batches of 2: filled and drained four times, with 3 s each, and 3 sends each way
    whole = replace(MEGATRON, pipeline_parallel_degree=4)
    for size, times in ((2, 4), (3, 8 / 3), (8, 1), (16, 1)):
        bubble, sends = piped(replace(whole, pipeline_micro_batches=size), head=0.0)
        assert bubble == pytest.approx(3.0 * times)
        one = 1e-5 + 2 * 2 * 2048 * 4096 / 200e9
        assert sends == pytest.approx(2 * (8 * fitted.PIPELINE_SEND_EXPOSED + 3 * times) * one)


@pytest.mark.parametrize(("precision", "element"), [("bf16", 2), ("fp32", 4)])
def test_a_micro_batch_passes_every_border_of_stages_twice(precision: str, element: int) -> None:
    layout = replace(MEGATRON, pipeline_parallel_degree=4, precision=precision)  # type: ignore[arg-type]
    one = 1e-5 + element * 2 * 2048 * 4096 / 200e9
    times = 2 * (8 * fitted.PIPELINE_SEND_EXPOSED + 3)
    assert piped(layout)[1] == pytest.approx(times * one)
    assert piped(replace(layout, virtual_pipeline_chunks=2))[1] == pytest.approx(2 * times * one)
    # divided messages; stages on two nodes share their network between 8 ranks
    wide = replace(layout, context_parallel_degree=2, tensor_parallel_degree=2)
    crossing = 3e-5 + 8 * element * 2 * 2048 * 4096 / 4 / 100e9
    assert piped(wide)[1] == pytest.approx(times * crossing)


def test_one_stage_is_no_pipeline() -> None:
    assert piped(replace(MEGATRON, tensor_parallel_degree=8)) == (0.0, 0.0)


def test_two_ranks_are_a_division_already() -> None:
    message = 2 * 2 * 2048 * 4096
    tensor = 4 * 32 * all_reduce_seconds(message, Group(num_nodes=1, ranks_per_node=2), AT)
    assert tensor > 0
    assert added(LLAMA_7B, replace(MEGATRON, tensor_parallel_degree=2))[0] == pytest.approx(tensor)
    # two copies of each token, half of them for the other rank, in the 24 layers that have experts
    experts = replace(MEGATRON, data_parallel_replicate_degree=2, expert_parallel_degree=2)
    assert added(MIXTURE, experts)[0] == pytest.approx(4 * 24 * (1e-5 + 2 * message / 2 / 200e9))


def test_the_fullest_stage_may_be_any_but_the_last() -> None:
    # where 8 layers take a second, 10 take 1.25 s, wherever they are; the other three stages fill and drain it
    for given in ((10, 8, 8, 6), (8, 10, 8, 6), (8, 8, 10, 6)):
        bubble, _ = piped(replace(MEGATRON, pipeline_parallel_degree=4, stage_layers=given))
        assert bubble == pytest.approx(4 - 1.25 + 8 * 0.25)
