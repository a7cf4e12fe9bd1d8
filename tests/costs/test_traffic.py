"""Data-parallel traffic by sharding (ZeRO, arXiv:1910.02054, section 7), and what of it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import Group, all_gather_seconds, all_reduce_seconds, ring_latency_seconds
from stratadvisor.costs.compute import ComputeTime
from stratadvisor.costs.data_parallel import (
    Traffic,
    exposed_data_parallel_seconds,
    tail_share,
    total_seconds,
    traffic,
    weight_bytes,
)
from stratadvisor.costs.overlap import exposed_seconds, overlap_cost
from stratadvisor.costs.rates import device_rates
from stratadvisor.costs.states import NF4_BYTES
from stratadvisor.costs.trainable import adapter_parameters, gradient_bytes, model_part, trainable_parameters
from stratadvisor.costs.work import place
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

NODES = nodes(gpu("A100-80GB"), 4, 8, intra_node_latency_seconds=1e-5)
AT = cluster(NODES, inter_node_bytes_per_second=50e9, inter_node_latency_seconds=3e-5)
ALL = Group(num_nodes=4, ranks_per_node=8)
PARAMETERS = 6_738_415_616
ZERO = Layout(engine="deepspeed", data_parallel_shard_degree=32, sharding="parameters")
FSDP = replace(ZERO, engine="fsdp2")
HYBRID = replace(FSDP, data_parallel_shard_degree=8, data_parallel_replicate_degree=4)
MIXTURE = LLAMA_7B.model_copy(
    update={
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "num_dense_layers": 4,
        "dense_ffn_hidden_size": 22016,
        "num_parameters": 40_000_000_000,
        "num_active_parameters": 13_000_000_000,
    }
)


def moved(layout: Layout, compression: str = "none", shape: ModelShape = LLAMA_7B) -> Traffic:
    return traffic(shape, layout, AT, place(layout, work(NODES)), compression)


@pytest.mark.parametrize(("compression", "each"), [("none", 4), ("bf16", 2), ("fp16", 2)])
def test_replicas_reduce_once_beside_the_last_backward(compression: str, each: int) -> None:
    layout = Layout(engine="ddp", data_parallel_replicate_degree=32)
    expected = all_reduce_seconds(each * PARAMETERS, ALL, AT)
    assert moved(layout, compression) == Traffic(last_backward=pytest.approx(expected))


def test_signs_of_every_rank_go_to_every_rank() -> None:
    layout = Layout(engine="ddp", data_parallel_replicate_degree=32)
    expected = all_gather_seconds(PARAMETERS / 8 * 32, ALL, AT)
    assert moved(layout, "sign") == Traffic(last_backward=pytest.approx(expected))


def test_zero_1_scatters_gradients_once_and_gathers_weights_after_the_step() -> None:
    half = all_reduce_seconds(2 * PARAMETERS, ALL, AT) / 2
    # buckets of 1e9 bytes: 13.5e9 bytes in 14 calls
    hops = ring_latency_seconds(ALL, AT) * 14
    found = moved(replace(ZERO, sharding="optimizer"))
    assert found == Traffic(last_backward=pytest.approx(half + hops), after=pytest.approx(half + hops))
    # ZeRO-2 scatters in every micro-batch
    found = moved(replace(ZERO, sharding="gradients"))
    assert found == Traffic(backward=pytest.approx(half + hops), after=pytest.approx(half + hops))
    # fp32: four bytes each way, in 27 calls
    whole = all_reduce_seconds(4 * PARAMETERS, ALL, AT) / 2 + ring_latency_seconds(ALL, AT) * 27
    found = moved(replace(ZERO, sharding="optimizer", precision="fp32"))
    assert found == Traffic(last_backward=pytest.approx(whole), after=pytest.approx(whole))


def test_full_sharding_gathers_every_layer_twice_and_scatters_once() -> None:
    hops = ring_latency_seconds(ALL, AT) * 32
    gather = all_reduce_seconds(2 * PARAMETERS, ALL, AT) / 2 + hops
    scatter = all_reduce_seconds(4 * PARAMETERS, ALL, AT) / 2 + hops
    assert moved(FSDP) == Traffic(forward=pytest.approx(gather), backward=pytest.approx(gather + scatter))
    # what keeps its weights from forward to backward gathers them once
    kept = moved(replace(FSDP, sharding="gradients"))
    assert kept == Traffic(forward=pytest.approx(gather), backward=pytest.approx(scatter))


def test_hybrid_sharding_scatters_inside_and_reduces_an_eighth_across() -> None:
    inside, across = Group(num_nodes=1, ranks_per_node=8), Group(num_nodes=4, ranks_per_node=1, groups_per_node=8)
    gather = all_reduce_seconds(2 * PARAMETERS, inside, AT) / 2
    scatter = all_reduce_seconds(4 * PARAMETERS, inside, AT) / 2
    reduction = all_reduce_seconds(4 * PARAMETERS / 8, across, AT)
    found = moved(HYBRID)
    assert (found.forward, found.backward) == pytest.approx((gather, gather + scatter))
    assert found.last_backward == pytest.approx(reduction)
    assert found.links_differ
    wide = moved(replace(HYBRID, data_parallel_shard_degree=16, data_parallel_replicate_degree=2))
    assert not wide.links_differ


def test_frozen_weights_travel_packed_and_only_adapters_are_reduced() -> None:
    assert weight_bytes(FSDP) == 2
    assert weight_bytes(replace(FSDP, precision="fp32")) == 4
    assert weight_bytes(replace(FSDP, method="qlora")) == NF4_BYTES
    adapters = 16 * 32 * (4 * (4096 + 4096) + 3 * (4096 + 11008))  # rank x layers x widths of seven matrices
    assert adapter_parameters(LLAMA_7B, 16) == adapters
    layout = Layout(engine="ddp", data_parallel_replicate_degree=32, method="lora", lora_rank=16)
    assert moved(layout).last_backward == pytest.approx(all_reduce_seconds(4 * adapters, ALL, AT))
    grouped = LLAMA_7B.model_copy(update={"num_key_value_heads": 8, "gated_mlp": False})
    widths = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 2 * (4096 + 11008)
    assert adapter_parameters(grouped, 4) == 4 * 32 * widths
    module = ModelShape(name="m", family="module", num_parameters=1000, num_active_parameters=1000, flops_per_item=1.0)
    assert adapter_parameters(module, 16) == pytest.approx(10)


def test_adapters_of_a_mixture_stand_beside_every_expert() -> None:
    attention = 4 * (4096 + 4096)
    sparse, dense = 3 * (4096 + 11008) * 9, 3 * (4096 + 22016)
    assert adapter_parameters(MIXTURE, 2) == 2 * (32 * attention + 28 * sparse + 4 * dense)


def test_a_part_of_a_divided_model() -> None:
    divided = Layout(engine="megatron", tensor_parallel_degree=4, pipeline_parallel_degree=2)
    assert model_part(LLAMA_7B, divided) == PARAMETERS / 8
    assert trainable_parameters(LLAMA_7B, divided) == PARAMETERS / 8
    lora = replace(divided, method="lora", lora_rank=16)
    assert trainable_parameters(LLAMA_7B, lora) == adapter_parameters(LLAMA_7B, 16) / 8
    # 27e9 parameters are those of the 6 experts of 8 that a token does not pass: all experts have 36e9
    spread = replace(divided, expert_parallel_degree=4)
    assert model_part(MIXTURE, spread) == pytest.approx((4e9 + 36e9 / 4) / 8)
    assert model_part(MIXTURE, divided) == 40e9 / 8
    seeing = LLAMA_7B.model_copy(update={"num_vision_parameters": 300_000_000})
    assert model_part(seeing, divided) == (PARAMETERS + 300_000_000) / 8


@pytest.mark.parametrize(
    ("engine", "precision", "compression", "each"),
    [
        ("ddp", "bf16", "none", 4),
        ("ddp", "bf16", "sign", 4),
        ("ddp", "fp32", "bf16", 2),
        ("ddp", "fp32", "fp16", 2),
        ("ddp", "bf16_pure", "none", 2),
        ("fsdp2", "bf16", "none", 4),
        ("megatron", "bf16", "none", 4),
        ("deepspeed", "bf16", "none", 2),
        ("deepspeed", "fp16", "none", 2),
        ("deepspeed", "fp32", "none", 4),
    ],
)
def test_bytes_of_a_gradient_on_the_wire(engine: str, precision: str, compression: str, each: int) -> None:
    layout = Layout(engine=engine, precision=precision)  # type: ignore[arg-type]
    assert gradient_bytes(layout, compression) == each


def test_the_last_bucket_has_the_embedding_in_it() -> None:
    ddp = Layout(engine="ddp")
    assert tail_share(LLAMA_7B, ddp) == pytest.approx(32000 * 4096 / PARAMETERS)
    divided = replace(ddp, tensor_parallel_degree=2, pipeline_parallel_degree=2)
    assert tail_share(LLAMA_7B, divided) == pytest.approx(32000 * 4096 / (PARAMETERS / 4) / 4)
    lora = replace(ddp, method="lora", lora_rank=64)
    assert tail_share(LLAMA_7B, lora) == pytest.approx(
        fitted.OVERLAP_BUCKET_BYTES / (4 * adapter_parameters(LLAMA_7B, 64))
    )
    tiny = LLAMA_7B.model_copy(update={"num_parameters": 1000, "vocab_size": 1, "hidden_size": 1})
    assert tail_share(tiny, ddp) == 1.0


def exposed(
    of: Traffic, micro_batches: float, forward: float = 1.0, backward: float = 2.0, again: float = 0.5
) -> float:
    compute = ComputeTime(forward_seconds=forward, backward_seconds=backward, recompute_seconds=again, terms_seconds={})
    return exposed_data_parallel_seconds(LLAMA_7B, FSDP, AT, of, compute, micro_batches)


def test_what_has_nothing_beside_it_shows_and_of_the_rest_a_share() -> None:
    cost = overlap_cost(FSDP, "nccl")
    assert cost == fitted.OVERLAP_COST["fsdp2"]
    edge = 1 / 32  # the first gather and the last scatter of 32 layers
    assert exposed(Traffic(after=3.0), 4) == 3.0
    forward = exposed_seconds(0.8, 1.0, cost, edge)
    assert forward == pytest.approx(0.8 - 0.8 * (1 - edge) * (1 - cost))
    assert exposed(Traffic(forward=0.8), 4) == pytest.approx(4 * forward)
    backward = exposed_seconds(4.0, 2.5, cost, edge)  # beside recomputation as well
    assert backward == pytest.approx(4.0 - 2.5 * (1 - cost))
    assert exposed(Traffic(backward=4.0), 3) == pytest.approx(3 * backward)
    tail = tail_share(LLAMA_7B, FSDP)
    assert exposed(Traffic(last_backward=1.0), 3) == pytest.approx(1.0 - (1 - tail) * (1 - cost))
    # the last pass hides 2.5 s of both together
    both = exposed(Traffic(backward=2.0, last_backward=1.0), 1)
    late = (edge * 2.0 + tail * 1.0) / 3.0
    assert both == pytest.approx(3.0 - min(3.0 * (1 - late), 2.5) * (1 - cost))
    # links of their own hide side by side
    apart = exposed(Traffic(backward=2.0, last_backward=1.0, links_differ=True), 1)
    hidden = 2.0 * (1 - edge), 1.0 * (1 - tail)
    assert apart == pytest.approx(max(2.0 - hidden[0], 1.0 - hidden[1]) + cost * sum(hidden))
    assert exposed(Traffic(), 2) == 0


def test_all_communication_counts_hidden_or_not() -> None:
    found = Traffic(forward=1.0, backward=2.0, last_backward=4.0, after=8.0)
    assert total_seconds(found, 3) == 3 * 3.0 + 12.0


def test_overlap_is_the_engines_and_over_gloo_there_is_little() -> None:
    for engine in ("ddp", "fsdp2", "deepspeed", "megatron"):
        assert overlap_cost(Layout(engine=engine), "nccl") == fitted.OVERLAP_COST[engine]  # type: ignore[arg-type]
        assert overlap_cost(Layout(engine=engine), "gloo") == fitted.OVERLAP_COST["gloo"]  # type: ignore[arg-type]
    for engine in ("torch", "local", "async"):
        assert overlap_cost(Layout(engine=engine), "nccl") == fitted.OVERLAP_COST["ddp"]  # type: ignore[arg-type]
    recipe = Layout(engine="megatron", compiled=True)
    assert overlap_cost(recipe, "nccl") == fitted.OVERLAP_COST["megatron_overlapped"]
    assert overlap_cost(replace(recipe, flash_attention=False), "nccl") == fitted.OVERLAP_COST["megatron"]
    assert overlap_cost(replace(recipe, engine="fsdp2"), "nccl") == fitted.OVERLAP_COST["fsdp2"]


@pytest.mark.parametrize(
    ("layout", "micro_batch", "step"),
    [
        # weights gathered twice in 16 bit, gradients scattered in fp32
        (FSDP, 2 * 2 + 4, 0),
        (replace(FSDP, sharding="gradients"), 2 + 4, 0),
        # DeepSpeed's gradients have 16 bit
        (ZERO, 2 * 2 + 2, 0),
        (replace(ZERO, sharding="gradients"), 2, 2),
        (replace(ZERO, sharding="optimizer"), 0, 2 + 2),
        # an all-reduce is a scatter and a gather
        (Layout(engine="ddp", data_parallel_replicate_degree=32), 0, 2 * 4),
    ],
)
def test_communication_passes_over_the_memory_of_the_devices(layout: Layout, micro_batch: int, step: int) -> None:
    found = moved(layout)
    others = 31 / 32 * fitted.COLLECTIVE_MEMORY_PASSES * PARAMETERS
    rate = device_rates(NODES.device, layout.precision).memory_bytes_per_second
    assert found.memory_micro_batch == pytest.approx(others * micro_batch / rate)
    assert found.memory_step == pytest.approx(others * step / rate)
    beside = ComputeTime(forward_seconds=1e3, backward_seconds=2e3, recompute_seconds=0.0, terms_seconds={})
    idle = replace(found, memory_micro_batch=0.0, memory_step=0.0)
    shown, hidden = (exposed_data_parallel_seconds(LLAMA_7B, layout, AT, m, beside, 3) for m in (found, idle))
    assert shown - hidden == pytest.approx(others * (3 * micro_batch + step) / rate)


def test_what_is_staged_in_host_memory_hardly_hides() -> None:
    found = moved(FSDP)
    beside = ComputeTime(forward_seconds=1e3, backward_seconds=2e3, recompute_seconds=0.0, terms_seconds={})
    staged = cluster(replace(NODES, peer_access=False), inter_node_bytes_per_second=50e9)
    direct, through = (exposed_data_parallel_seconds(LLAMA_7B, FSDP, at, found, beside, 1) for at in (AT, staged))
    late = (found.forward + found.backward) / 32  # the first gather and the last scatter of 32 layers
    hidden = found.forward + found.backward - late
    share = fitted.STAGED_OVERLAP_COST - overlap_cost(FSDP, "nccl")
    assert through - direct == pytest.approx(hidden * share)


def test_nobody_passes_over_memory_alone_or_over_gloo() -> None:
    alone = replace(FSDP, data_parallel_shard_degree=1)
    one = nodes(gpu("A100-80GB"), 1, 1)
    found = traffic(LLAMA_7B, alone, cluster(one), place(alone, work(one)))
    assert found.memory_micro_batch == found.memory_step == 0.0
    over = replace(AT, backend="gloo")
    assert traffic(LLAMA_7B, FSDP, over, place(FSDP, work(NODES))).memory_micro_batch == 0.0
