from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from time_cases import CPU, LLAMA_7B, cluster, ddp, fsdp, gpu, nodes, work

from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.costs.flops import model_flops_per_sequence
from stratadvisor.costs.overlap import overlap_cost
from stratadvisor.costs.step import ClassWork, estimate_step
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Layout, TimeEstimate

A100 = gpu("A100-80GB")
TWO_NODES = nodes(A100, 2, 8)
LAYOUTS = [
    Layout(engine="torch"),
    ddp(16),
    fsdp(16),
    replace(fsdp(8), data_parallel_replicate_degree=2),
    replace(fsdp(16), engine="deepspeed", sharding="optimizer"),
    replace(fsdp(16), engine="deepspeed", sharding="gradients"),
    replace(fsdp(16), engine="deepspeed", sharding="optimizer", optimizer_offload="cpu"),
    replace(fsdp(16), engine="deepspeed", optimizer_offload="nvme", parameter_offload="cpu"),
    Layout(
        engine="megatron",
        tensor_parallel_degree=4,
        pipeline_parallel_degree=2,
        data_parallel_replicate_degree=2,
        flash_attention=False,
    ),
    Layout(engine="local", data_parallel_replicate_degree=16, sync_interval_steps=50),
    Layout(engine="local", data_parallel_replicate_degree=2, data_parallel_shard_degree=8, sync_interval_steps=8),
    Layout(engine="async", data_parallel_replicate_degree=16),
]


def step(layout: Layout, at: Cluster, of: NodeClass, micro: int = 2, steps: int = 2, **options: str) -> TimeEstimate:
    return estimate_step(LLAMA_7B, layout, at, work(of, micro, steps), strategy=options.pop("strategy", "x"), **options)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.engine}-{x.sharding}-{x.optimizer_offload}")
def test_terms_add_up_and_the_span_is_ordered(layout: Layout) -> None:
    made = step(layout, cluster(TWO_NODES), TWO_NODES)
    assert sum(made.terms_seconds.values()) == pytest.approx(made.step_seconds.likely)
    assert all(seconds >= 0 for seconds in made.terms_seconds.values())
    assert made.step_seconds.low < made.step_seconds.likely < made.step_seconds.high
    assert 0 <= made.exposed_communication_fraction <= 1


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS[1:]),
    rates=st.tuples(st.floats(1e7, 1e12), st.floats(1e7, 1e12)),
    inside=st.tuples(st.floats(1e8, 1e12), st.floats(1e8, 1e12)),
)
def test_more_bandwidth_is_never_slower(
    layout: Layout, rates: tuple[float, float], inside: tuple[float, float]
) -> None:
    def at(network: float, node: float) -> float:
        of = replace(TWO_NODES, intra_node_bytes_per_second=node)
        return step(layout, cluster(of, inter_node_bytes_per_second=network), of).step_seconds.likely

    assert at(max(rates), max(inside)) <= at(min(rates), min(inside)) * (1 + 1e-9)


def test_computation_does_not_grow_with_more_devices_of_the_same_share() -> None:
    few, many = nodes(A100, 2, 8), nodes(A100, 16, 8)
    small = step(fsdp(16), cluster(few), few)
    large = step(fsdp(128), cluster(many), many)
    for term in ("matmul", "attention", "memory_bound"):
        assert small.terms_seconds[term] == large.terms_seconds[term]
    assert large.tokens_per_step == 8 * small.tokens_per_step


def test_flops_and_tokens_are_those_of_the_whole_batch() -> None:
    made = step(ddp(16), cluster(TWO_NODES), TWO_NODES, micro=2, steps=3)
    assert made.tokens_per_step == 16 * 2 * 3 * 2048
    assert made.model_flops_per_step == 16 * 2 * 3 * model_flops_per_sequence(LLAMA_7B, 2048)
    single = step(Layout(engine="torch"), cluster(TWO_NODES), TWO_NODES, micro=2, steps=3)
    assert single.tokens_per_step == 2 * 3 * 2048
    assert single.communication_seconds == 0


def test_data_parallel_reduction_is_a_ring_of_fp32_gradients() -> None:
    one_node = nodes(A100, 1, 8)
    made = step(ddp(8), cluster(one_node), one_node)
    # 4 bytes a gradient, 2 * 7/8 of them over 200 GB/s, and what small messages cost beside it
    assert made.communication_seconds == pytest.approx(1.75 * 4 * LLAMA_7B.num_parameters / 200e9, rel=0.005)
    halved = step(ddp(8), cluster(one_node), one_node, compression="bf16")
    assert halved.communication_seconds == pytest.approx(made.communication_seconds / 2, rel=0.005)


def test_full_sharding_gathers_twice_and_scatters_once_per_micro_batch() -> None:
    one_node = nodes(A100, 1, 8)
    made = step(fsdp(8), cluster(one_node), one_node, steps=3)
    # ZeRO paper, section 7: bf16 weights twice, gradients (fp32 here) once, 7/8 of them over the link
    volume = (2 + 2 + 4) * LLAMA_7B.num_parameters * 7 / 8
    assert made.communication_seconds == pytest.approx(3 * volume / 200e9, rel=0.005)


def test_accumulation_amortises_ddp_but_not_full_sharding() -> None:
    slow = nodes(A100, 2, 8)
    at = cluster(slow, inter_node_bytes_per_second=1e9)

    def share(layout: Layout, steps: int) -> float:
        return step(layout, at, slow, micro=1, steps=steps).exposed_communication_fraction

    assert share(ddp(16), 64) < share(ddp(16), 1) / 2
    assert share(fsdp(16), 64) > share(fsdp(16), 1) * 0.8


def test_sharding_inside_nodes_beats_full_sharding_over_a_slow_network() -> None:
    slow = nodes(A100, 2, 8)
    at = cluster(slow, inter_node_bytes_per_second=2e9)
    hybrid = step(replace(fsdp(8), data_parallel_replicate_degree=2), at, slow)
    full = step(fsdp(16), at, slow)
    assert hybrid.step_seconds.likely < full.step_seconds.likely


def test_local_steps_divide_the_exchange() -> None:
    slow = nodes(A100, 2, 1)
    at = cluster(slow, inter_node_bytes_per_second=1e8)

    def exposed(interval: int) -> float:
        layout = Layout(engine="local", data_parallel_replicate_degree=2, sync_interval_steps=interval)
        return step(layout, at, slow).exposed_communication_seconds

    # fp32 weights between two nodes: 2 * 1/2 of 4 bytes each over 0.1 GB/s
    assert exposed(1) == pytest.approx(4 * LLAMA_7B.num_parameters / 1e8, rel=0.01)
    assert exposed(100) == pytest.approx(exposed(1) / 100)


def test_an_exchange_under_way_hides_behind_the_steps_it_is_late_by() -> None:
    slow = nodes(A100, 2, 1)
    # 4 bytes of each weight over a link at which they take one and a half steps
    layout = Layout(engine="local", data_parallel_replicate_degree=2, sync_interval_steps=10)
    alone = step(replace(layout, sync_interval_steps=10**9), cluster(slow), slow).step_seconds.likely
    rate = 4 * LLAMA_7B.num_parameters / (1.5 * alone)
    at = cluster(slow, inter_node_bytes_per_second=rate, inter_node_latency_seconds=0.0)

    def made(delay: int) -> TimeEstimate:
        return step(replace(layout, exchange_delay_steps=delay), at, slow)

    at_once = made(0)
    assert at_once.exposed_communication_seconds == pytest.approx(1.5 * alone / 10, rel=0.01)
    late = [made(delay).exposed_communication_seconds for delay in (1, 2, 3)]
    shows = overlap_cost(layout, at.backend)  # the share of what is hidden that slows the steps beside it
    assert late[0] == pytest.approx((0.5 + 1.0 * shows) * alone / 10, rel=0.01)
    assert late[1] == pytest.approx(1.5 * shows * alone / 10, rel=0.01)
    assert late[2] == pytest.approx(late[1])  # nothing is left to hide
    assert made(2).communication_seconds == pytest.approx(at_once.communication_seconds)


def test_asynchronous_workers_add_their_speeds_and_wait_for_nobody() -> None:
    fast, slow = nodes(A100, 1, 1), nodes(gpu("V100-32GB"), 1, 1)
    layout = Layout(engine="async", data_parallel_replicate_degree=2, precision="fp16")
    shares = tuple(w for c in (fast, slow) for w in work(c, 4))
    at = cluster(fast, slow, inter_node_bytes_per_second=1e15)
    free = estimate_step(LLAMA_7B, layout, at, shares, strategy="async_sgd").step_seconds.likely
    synchronous = replace(layout, engine="ddp")
    lockstep = estimate_step(LLAMA_7B, synchronous, at, shares, strategy="ddp").step_seconds.likely
    alone = [
        estimate_step(LLAMA_7B, Layout(engine="torch", precision="fp16"), cluster(c), work(c, 4), strategy="single")
        for c in (fast, slow)
    ]
    a, b = (t.step_seconds.likely for t in alone)
    assert free == pytest.approx(8 / (4 / a + 4 / b), rel=0.02)
    assert free < lockstep


def test_a_servers_link_limits_the_workers() -> None:
    many = nodes(A100, 32, 1)
    at = cluster(many, inter_node_bytes_per_second=1e9)
    layout = Layout(engine="async", data_parallel_replicate_degree=32)
    made = step(layout, at, many, micro=1, steps=1)
    assert made.step_seconds.likely >= 32 * 4 * LLAMA_7B.num_parameters / (1e9 * 1.0001)


def test_the_slowest_class_sets_a_synchronous_step() -> None:
    fast, slow = nodes(A100, 1, 8), nodes(gpu("V100-32GB"), 1, 8)
    shares = tuple(w for c in (fast, slow) for w in work(c))
    layout = ddp(16, precision="fp16")
    both = estimate_step(LLAMA_7B, layout, cluster(fast, slow), shares, strategy="ddp")
    slow_compute = micro_batch_seconds(LLAMA_7B, layout, slow.device, 2).total_seconds
    assert both.step_seconds.likely >= slow_compute


def test_stragglers_cost_the_expected_maximum() -> None:
    steady, unsteady = nodes(A100, 2, 8), nodes(A100, 2, 8, speed_variation=0.1)
    quiet, noisy = (step(ddp(16), cluster(c), c) for c in (steady, unsteady))
    compute = 2 * micro_batch_seconds(LLAMA_7B, ddp(16), A100, 2).total_seconds
    assert quiet.terms_seconds["straggler"] == 0
    assert noisy.terms_seconds["straggler"] == pytest.approx(compute * 0.1 * 1.766, rel=0.01)  # of 16, tabulated
    assert noisy.step_seconds.high / noisy.step_seconds.likely > quiet.step_seconds.high / quiet.step_seconds.likely


def test_a_pipeline_bubbles_by_its_depth_over_its_micro_batches() -> None:
    at = nodes(A100, 1, 8)

    def bubble(micro_batches: int, chunks: int = 1) -> float:
        layout = Layout(engine="megatron", pipeline_parallel_degree=8, virtual_pipeline_chunks=chunks)
        made = step(layout, cluster(at), at, micro=1, steps=micro_batches)
        return made.terms_seconds["pipeline_bubble"]

    # fill and drain do not depend on the number of micro-batches; the head stage's surplus does
    surplus = bubble(9) - bubble(8)
    assert bubble(8) - 8 * surplus == pytest.approx(bubble(64) - 64 * surplus)
    assert bubble(8, chunks=4) - 8 * surplus == pytest.approx((bubble(8) - 8 * surplus) / 4)


def test_the_fullest_stage_sets_the_pace_of_a_pipeline() -> None:
    at = nodes(A100, 1, 8)

    def seconds_of_a_micro_batch(stage_layers: tuple[int, ...]) -> float:
        layout = Layout(
            engine="megatron", pipeline_parallel_degree=4, tensor_parallel_degree=2, stage_layers=stage_layers
        )
        few, many = (step(layout, cluster(at), at, micro=1, steps=count).step_seconds.likely for count in (64, 128))
        return (many - few) / 64

    even, uneven = seconds_of_a_micro_batch((8, 8, 8, 8)), seconds_of_a_micro_batch((7, 12, 7, 6))
    # only what grows with the layers of the stage does: products, attention, memory-bound work, tensor parallelism
    assert even < uneven < even * 12 / 8
    assert seconds_of_a_micro_batch(()) == pytest.approx(even)
    # a last stage with few layers has time for the output projection
    assert seconds_of_a_micro_batch((9, 9, 9, 5)) == pytest.approx(seconds_of_a_micro_batch((9, 9, 8, 6)))


def test_offload_pays_host_memory_and_the_link_once_per_step() -> None:
    host = nodes(A100, 1, 8, host_memory_bandwidth_bytes_per_second=100e9)
    layout = replace(fsdp(8), engine="deepspeed", sharding="optimizer", optimizer_offload="cpu")
    made = step(layout, cluster(host), host, steps=4)
    whole = LLAMA_7B.num_parameters
    share = min(25e9, 100e9 / 16)  # eight ranks copy in and out of the same memory
    expected = 2 * 2 * whole / 8 / share + 30 * whole / 100e9
    assert made.terms_seconds["offload"] == pytest.approx(expected)
    blind = nodes(A100, 1, 8)
    assert any("host memory" in note for note in step(layout, cluster(blind), blind).assumptions)


def test_a_slow_data_feed_is_waited_for() -> None:
    fed, starved = nodes(A100, 1, 8, data_item_seconds=1e-6), nodes(A100, 1, 8, data_item_seconds=30.0)
    assert step(ddp(8), cluster(fed), fed).terms_seconds["data_wait"] == 0
    made = step(ddp(8), cluster(starved), starved, micro=2, steps=2)
    # 64 cores for 8 devices: 7 loader workers prepare 4 sequences of 30 s
    assert made.step_seconds.likely == pytest.approx(4 * 30.0 / 7)


def test_an_earlier_run_corrects_the_prediction_and_narrows_it() -> None:
    plain = step(ddp(16), cluster(TWO_NODES), TWO_NODES, strategy="ddp")
    ratios = {("A100-80GB-SXM", "ddp"): 1.25}
    at = cluster(TWO_NODES, calibration_time_ratios=ratios)
    known = step(ddp(16), at, TWO_NODES, strategy="ddp")
    assert known.step_seconds.likely == pytest.approx(1.25 * plain.step_seconds.likely)
    assert known.step_seconds.high / known.step_seconds.likely < plain.step_seconds.high / plain.step_seconds.likely
    assert step(ddp(16), at, TWO_NODES, strategy="fsdp2").step_seconds.likely == plain.step_seconds.likely


def test_an_unknown_network_is_assumed_slow_and_said() -> None:
    blind = cluster(TWO_NODES, inter_node_bytes_per_second=None)
    made = step(ddp(16), blind, TWO_NODES)
    known = step(ddp(16), cluster(TWO_NODES), TWO_NODES)
    assert any("between nodes is unknown" in note for note in made.assumptions)
    assert made.step_seconds.likely > known.step_seconds.likely
    assert made.step_seconds.high / made.step_seconds.likely > known.step_seconds.high / known.step_seconds.likely
    one_node = nodes(A100, 1, 8)
    assert not step(ddp(8), cluster(one_node, inter_node_bytes_per_second=None), one_node).assumptions


def test_nearly_all_communication_shows_on_a_cpu() -> None:
    two = nodes(CPU, 1, 2)
    at = cluster(two, backend="gloo")
    small = LLAMA_7B.model_copy(update={"num_layers": 2, "hidden_size": 256, "ffn_hidden_size": 688})
    layout = ddp(2, precision="fp32", sequence_length=128)
    made = estimate_step(small, layout, at, work(two), strategy="ddp")
    assert made.exposed_communication_seconds > 0.85 * made.communication_seconds


def test_part_of_the_last_micro_batch_counts_as_part() -> None:
    one = nodes(A100, 1, 8)
    uneven = (ClassWork(node_class=one, micro_batch_size=4, gradient_accumulation_steps=2, batch_per_device=6),)
    made = estimate_step(LLAMA_7B, ddp(8), cluster(one), uneven, strategy="x")
    even = estimate_step(LLAMA_7B, ddp(8), cluster(one), work(one, 4, 1), strategy="x")
    assert made.terms_seconds["matmul"] == pytest.approx(1.5 * even.terms_seconds["matmul"])


def test_the_same_question_has_the_same_answer() -> None:
    at = cluster(TWO_NODES)
    assert step(fsdp(16), at, TWO_NODES) == step(fsdp(16), at, TWO_NODES)


def test_a_node_of_replicas_sends_its_weights_once_and_hands_the_mean_round() -> None:
    at = cluster(TWO_NODES, inter_node_bytes_per_second=1e9)
    layout = Layout(
        engine="local", data_parallel_replicate_degree=2, data_parallel_shard_degree=8, sync_interval_steps=1000
    )
    inner = step(ddp(8), cluster(nodes(A100, 1, 8)), nodes(A100, 1, 8)).communication_seconds
    exchange = (step(layout, at, TWO_NODES).communication_seconds - inner) * 1000
    weights = 4 * LLAMA_7B.num_parameters
    # leaders: a ring of 2 over 1 GB/s; then 200 GB/s inside the node
    assert exchange == pytest.approx(weights / 1e9 + weights / 200e9, rel=0.02)
