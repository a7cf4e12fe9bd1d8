"""Terms of a micro-batch on devices whose speed is a round figure, or so fast that only the host counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from time_cases import CPU as UNMEASURED
from time_cases import LLAMA_7B, gpu

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.compute import ComputeTime, head_seconds, micro_batch_seconds
from stratadvisor.schema.cluster import Device
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

CPU = replace(UNMEASURED, matmul_by_size={"fp32": {64: 1e11}})
"""The same rate for every product of more than 64."""
MEASURED = {"memory_bandwidth_bytes_per_second": "measured"}
ENDLESS = gpu(
    "A100-80GB",
    measured_flops_per_second={"bf16": 1e30, "fp32": 1e30},
    memory_bandwidth_bytes_per_second=1e30,
    origins=MEASURED,
)
MEMORY_ONLY = replace(ENDLESS, memory_bandwidth_bytes_per_second=1e12)
"""Products take no time, every byte 1e-12 s."""
PLAIN = Layout(engine="torch", precision="fp32", sequence_length=256)
TOKENS = 2 * 256
SHAPE = LLAMA_7B.model_copy(update={"num_layers": 4})
PARAMETERS = 6_738_415_616
MODULE = ModelShape(
    name="m",
    family="module",
    num_parameters=10_000_000,
    num_active_parameters=10_000_000,
    flops_per_item=1e9,
    saved_bytes_per_item=4e6,
)


def timed(layout: Layout, device: Device = CPU, shape: ModelShape = SHAPE) -> ComputeTime:
    return micro_batch_seconds(shape, layout, device, 2)


def launches(layout: Layout, device: Device = ENDLESS) -> float:
    return timed(layout, device).terms_seconds["launch"]


BOTH = 1 + fitted.BACKWARD_KERNELS


@pytest.mark.parametrize(
    ("change", "kernels"),
    [
        ({}, fitted.EAGER_KERNELS_PER_LAYER),
        ({"compiled": True}, fitted.COMPILED_KERNELS_PER_LAYER),
        ({"engine": "megatron"}, fitted.MEGATRON_KERNELS_PER_LAYER),
        ({"engine": "megatron", "compiled": True}, fitted.MEGATRON_KERNELS_PER_LAYER),
        ({"engine": "megatron", "tensor_parallel_degree": 2}, fitted.MEGATRON_KERNELS_PER_LAYER + 8),
        # two thin products and an addition beside each of 5 weights (queries, keys and values are one), and unpacking
        ({"method": "lora"}, fitted.EAGER_KERNELS_PER_LAYER + 4 * 5),
        ({"method": "qlora"}, fitted.EAGER_KERNELS_PER_LAYER + 6 * 5),
    ],
)
def test_a_host_launches_so_many_kernels(change: dict[str, Any], kernels: float) -> None:
    layout = replace(PLAIN, **change)
    whole = 4 * kernels + fitted.KERNELS_OUTSIDE_LAYERS
    assert launches(layout) == pytest.approx(whole * fitted.KERNEL_LAUNCH_SECONDS * BOTH, rel=1e-6)
    # one of two stages, without the head
    piped = replace(layout, pipeline_parallel_degree=2)
    assert launches(piped) == pytest.approx(2 * kernels * fitted.KERNEL_LAUNCH_SECONDS * BOTH, rel=1e-6)


def test_recomputed_layers_are_launched_again_and_their_random_states_restored() -> None:
    full = replace(PLAIN, activation_checkpointing="full")
    more = 4 * fitted.EAGER_KERNELS_PER_LAYER * fitted.KERNEL_LAUNCH_SECONDS + 4 * fitted.CHECKPOINT_HOST_SECONDS
    assert launches(full) - launches(PLAIN) == pytest.approx(more, rel=1e-6)
    megatron = replace(full, engine="megatron", pipeline_parallel_degree=2)
    more = 2 * (
        fitted.MEGATRON_KERNELS_PER_LAYER * fitted.KERNEL_LAUNCH_SECONDS + fitted.MEGATRON_CHECKPOINT_HOST_SECONDS
    )
    plain = replace(megatron, activation_checkpointing="none")
    assert launches(megatron) - launches(plain) == pytest.approx(more, rel=1e-6)


def test_engines_that_gather_take_their_own_time_of_the_host() -> None:
    def more(change: dict[str, Any], device: Device = ENDLESS) -> float:
        return launches(replace(PLAIN, **change), device) - launches(replace(PLAIN, engine="ddp"), device)

    sharded = {"sharding": "parameters", "data_parallel_shard_degree": 8}
    each = fitted.ENGINE_HOST_SECONDS_PER_LAYER
    assert more({"engine": "fsdp2", **sharded}) == pytest.approx(4 * each["fsdp2"] * fitted.GPU_HOST_SHARE, rel=1e-6)
    assert more({"engine": "deepspeed", **sharded}) == pytest.approx(
        4 * each["zero3"] * fitted.GPU_HOST_SHARE, rel=1e-6
    )
    assert more({"engine": "fsdp2", **sharded}, CPU) == pytest.approx(4 * each["fsdp2"])
    assert more({"engine": "fsdp2", **sharded, "data_parallel_shard_degree": 1}) == pytest.approx(0, abs=1e-12)
    assert more({"engine": "deepspeed", **sharded, "sharding": "optimizer"}) == pytest.approx(0, abs=1e-12)
    # DTensor's dispatch beside tensor parallelism, in eager mode only
    divided = {"engine": "fsdp2", "tensor_parallel_degree": 2}
    kernels = 4 * fitted.TENSOR_PARALLEL_KERNELS * fitted.KERNEL_LAUNCH_SECONDS * BOTH
    dispatch = 4 * fitted.DTENSOR_HOST_SECONDS_PER_LAYER * fitted.GPU_HOST_SHARE
    assert more(divided) == pytest.approx(kernels + dispatch, rel=1e-6)
    # an adapter makes six operations of one; checkpointing does the forward third again
    adapted = launches(replace(PLAIN, engine="ddp", method="lora", tensor_parallel_degree=2))
    own = 4 * fitted.TENSOR_PARALLEL_KERNELS * fitted.KERNEL_LAUNCH_SECONDS * BOTH
    assert adapted - launches(replace(PLAIN, engine="ddp", method="lora")) == pytest.approx(
        own + 6 * dispatch, rel=1e-6
    )
    again = launches(replace(PLAIN, **divided, activation_checkpointing="full")) - launches(replace(PLAIN, **divided))
    kernels = 4 * (fitted.EAGER_KERNELS_PER_LAYER + fitted.TENSOR_PARALLEL_KERNELS) * fitted.KERNEL_LAUNCH_SECONDS
    assert again == pytest.approx(dispatch / 3 + kernels + 4 * fitted.CHECKPOINT_HOST_SECONDS, rel=1e-6)
    compiled = replace(PLAIN, **divided, compiled=True)
    fewer = 4 * (fitted.COMPILED_KERNELS_PER_LAYER + fitted.TENSOR_PARALLEL_KERNELS) + fitted.KERNELS_OUTSIDE_LAYERS
    assert launches(compiled) == pytest.approx(fewer * fitted.KERNEL_LAUNCH_SECONDS * BOTH, rel=1e-6)


def test_launches_hide_behind_work_that_takes_longer() -> None:
    assert launches(PLAIN, gpu("A100-80GB")) == 0
    found = timed(PLAIN, ENDLESS)
    whole = (4 * fitted.EAGER_KERNELS_PER_LAYER + fitted.KERNELS_OUTSIDE_LAYERS) * fitted.KERNEL_LAUNCH_SECONDS
    assert found.forward_seconds == pytest.approx(whole)
    assert found.backward_seconds == pytest.approx(whole * fitted.BACKWARD_KERNELS)
    # a third of the engine's time is forward
    sharded = timed(replace(PLAIN, engine="fsdp2", sharding="parameters", data_parallel_shard_degree=8), ENDLESS)
    engine = 4 * fitted.ENGINE_HOST_SECONDS_PER_LAYER["fsdp2"] * fitted.GPU_HOST_SHARE
    assert sharded.forward_seconds == pytest.approx(whole + engine / 3)
    assert sharded.backward_seconds == pytest.approx(whole * fitted.BACKWARD_KERNELS + engine * 2 / 3)


def test_on_a_processor_every_part_adds_up() -> None:
    found = timed(PLAIN)
    terms = found.terms_seconds
    linear = 4 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 4096 * 32000
    products = 2.0 * TOKENS * linear / 1e11 / fitted.CPU_SUSTAINED_SHARE
    head = 2.0 * TOKENS * 4096 * 32000 / 1e11 / fitted.CPU_SUSTAINED_SHARE
    # backward: two products, of which a layer's weight gradients take a little longer
    backward = 2 * products + (products - head) * (fitted.WEIGHT_GRADIENT_SLOWDOWN - 1)
    assert terms["matmul"] == pytest.approx(products + backward)
    # two products of 256 x 256 scores of which half are computed, for 2 sequences
    scores = 4 * 4.0 * 2 * 256 * 256 * 4096 * 0.5 / (1e11 * fitted.CPU_ATTENTION_SHARE)
    assert terms["attention"] == pytest.approx(scores * (1 + fitted.FLASH_BACKWARD_FLOPS))
    passes = fitted.ELEMENTWISE_HIDDEN_PASSES * 4096 + fitted.ELEMENTWISE_FFN_PASSES * 11008
    elementwise = 4 * TOKENS * passes * fitted.CPU_ELEMENTWISE_FLOPS["fp32"] / 1e11
    loss = TOKENS * 32000 * fitted.CPU_LOGIT_FLOPS["fp32"] / 1e11
    added = PARAMETERS * 3 * 4 / 2e10  # into the gradient: read both, write one
    assert terms["memory_bound"] == pytest.approx(elementwise * (1 + fitted.ELEMENTWISE_BACKWARD) + loss + added)
    kernels = 4 * fitted.EAGER_KERNELS_PER_LAYER + fitted.KERNELS_OUTSIDE_LAYERS
    assert terms["launch"] == pytest.approx(kernels * fitted.CPU_OPERATION_SECONDS * BOTH)
    assert terms["recompute"] == 0


def test_in_16_bit_a_processor_passes_over_elements_faster_and_casts_weights() -> None:
    terms = timed(replace(PLAIN, precision="bf16")).terms_seconds
    passes = fitted.ELEMENTWISE_HIDDEN_PASSES * 4096 + fitted.ELEMENTWISE_FFN_PASSES * 11008
    elementwise = 4 * TOKENS * passes * fitted.CPU_ELEMENTWISE_FLOPS["half"] / 1e11
    loss = TOKENS * 32000 * fitted.CPU_LOGIT_FLOPS["half"] / 1e11
    casts = PARAMETERS * (fitted.AUTOCAST_FORWARD_BYTES + fitted.AUTOCAST_BACKWARD_BYTES) / 2e10
    assert terms["memory_bound"] == pytest.approx(elementwise * (1 + fitted.ELEMENTWISE_BACKWARD) + loss + casts)


def test_weights_are_cast_only_where_they_are_not_kept_in_16_bits() -> None:
    def memory(layout: Layout) -> float:
        return timed(replace(layout, precision="bf16")).terms_seconds["memory_bound"]

    casts = PARAMETERS * (fitted.AUTOCAST_FORWARD_BYTES + fitted.AUTOCAST_BACKWARD_BYTES) / 2e10
    added = PARAMETERS * 3 * 2 / 2e10
    autocast = memory(PLAIN)
    for engine in ("ddp", "local", "async"):
        assert memory(replace(PLAIN, engine=engine)) == pytest.approx(autocast)  # type: ignore[arg-type]
    for engine in ("fsdp2", "deepspeed"):
        assert autocast - memory(replace(PLAIN, engine=engine)) == pytest.approx(casts - added)  # type: ignore[arg-type]


def test_compiled_megatron_layers_pass_over_memory_so_often() -> None:
    layout = Layout(engine="megatron", compiled=True, sequence_length=256, tensor_parallel_degree=2)
    layers, head, sums = 4, 32000 / 2, PARAMETERS / 2 * 3 * 2
    loss = TOKENS * math.ceil(head / 128) * 128 * fitted.CROSS_ENTROPY_BYTES_PER_LOGIT
    for sequence_parallel, divided in ((True, 2), (False, 1)):
        passes = fitted.ELEMENTWISE_HIDDEN_PASSES * 4096 / divided + fitted.ELEMENTWISE_FFN_PASSES * 11008 / 2
        elementwise = layers * TOKENS * passes * 2 * (1 + fitted.ELEMENTWISE_BACKWARD)
        terms = timed(replace(layout, sequence_parallel=sequence_parallel), MEMORY_ONLY).terms_seconds
        assert terms["memory_bound"] == pytest.approx((elementwise + loss + sums) / 1e12)


def test_plain_attention_passes_over_the_scores() -> None:
    layout = Layout(engine="megatron", flash_attention=False, sequence_length=256)
    scores = 2 * 256 * 256 * 32  # of 32 heads
    own = sum(fitted.UNFUSED_MEGATRON_PASSES)
    assert own - 2 * fitted.DROPOUT_PASSES == 6 + 17  # write, fill, softmax, read; and what gradients copy
    changes: tuple[tuple[dict[str, Any], float, int], ...] = (
        ({"compiled": True}, 2 * fitted.UNFUSED_PASSES, 2),
        ({"compiled": False}, own, 2),
        ({"compiled": True, "precision": "fp32"}, own, 4),  # the fused kernel takes 16 bit only
        ({"dropout": False}, own - 2 * fitted.DROPOUT_PASSES, 2),
        ({"engine": "ddp"}, 2 * fitted.UNFUSED_EAGER_PASSES, 2),
        ({"engine": "ddp", "dropout": False}, 2 * (fitted.UNFUSED_EAGER_PASSES - fitted.DROPOUT_PASSES), 2),
    )
    for change, passes, element in changes:
        found = timed(replace(layout, **change), MEMORY_ONLY)
        assert found.terms_seconds["attention"] == pytest.approx(4 * scores * passes * element / 1e12)
    # an A100's peak halves at a depth of HALF_DEPTH, and heads are 128 wide
    slow = replace(ENDLESS, measured_flops_per_second={"bf16": 1e14}, peak_flops_per_second={"bf16": 312e12})
    rate = 1e14 * fitted.SUSTAINED_SHARE * 128 / (128 + fitted.HALF_DEPTH)
    whole = timed(layout, slow).terms_seconds["attention"]
    assert whole == pytest.approx(3 * 4 * 4.0 * 2 * 256 * 256 * 4096 / rate)  # forward once, backward twice


def test_adapters_pass_over_inputs_and_outputs_and_unpacking_over_weights() -> None:
    plain, lora, qlora = (
        timed(replace(PLAIN, engine="fsdp2", method=method), MEMORY_ONLY).terms_seconds["memory_bound"]  # type: ignore[arg-type]
        for method in ("full", "lora", "qlora")
    )
    # queries, keys and values 3 h from h; output h from h; gate and up f from h; down h from f
    edges = 4 * 4096 + 2 * 4096 + 2 * (4096 + 11008) + (4096 + 11008)
    added = PARAMETERS * 3 * 4  # what full training does with weight gradients
    assert lora - plain == pytest.approx((4 * TOKENS * edges * 4 * (2 + 3) - added) / 1e12)
    weights = 4 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert qlora - lora == pytest.approx(2 * weights * fitted.UNPACK_BYTES / 1e12)


@pytest.mark.parametrize(
    ("engine", "checkpointing", "redone"),
    [
        ("torch", "none", ()),
        ("deepspeed", "full", ("matmul", "attention", "memory")),
        ("megatron", "full", ("matmul", "attention", "memory")),
        ("megatron", "selective", ()),
    ],
)
def test_what_is_computed_again(engine: str, checkpointing: str, redone: tuple[str, ...]) -> None:
    layout = Layout(
        engine=engine,  # type: ignore[arg-type]
        sequence_length=256,
        precision="fp32",
        activation_checkpointing=checkpointing,  # type: ignore[arg-type]
    )
    found = timed(layout).terms_seconds["recompute"]
    matmul = 2.0 * TOKENS * 4 * (4 * 4096 * 4096 + 3 * 4096 * 11008) / 1e11 / fitted.CPU_SUSTAINED_SHARE
    attention = 4 * 4.0 * 2 * 256 * 256 * 4096 * 0.5 / (1e11 * fitted.CPU_ATTENTION_SHARE)
    passes = fitted.ELEMENTWISE_HIDDEN_PASSES * 4096 + fitted.ELEMENTWISE_FFN_PASSES * 11008
    memory = 4 * TOKENS * passes * fitted.CPU_ELEMENTWISE_FLOPS["fp32"] / 1e11
    parts = {"matmul": matmul, "attention": attention, "memory": memory}
    assert found == pytest.approx(sum(parts[name] for name in redone))
    down = 2.0 * TOKENS * 4 * 4096 * 11008 / 1e11 / fitted.CPU_SUSTAINED_SHARE
    torch = timed(replace(layout, engine="torch", activation_checkpointing="full")).terms_seconds["recompute"]
    assert torch == pytest.approx(matmul + attention + memory - down)  # stops before the last product
    some = timed(replace(layout, engine="torch", activation_checkpointing="selective")).terms_seconds["recompute"]
    assert some == pytest.approx(fitted.SELECTIVE_MATMUL_SHARE * matmul + memory)
    scores = replace(layout, engine="megatron", flash_attention=False, activation_checkpointing="selective")
    assert timed(scores).terms_seconds["recompute"] == pytest.approx(attention)


def test_a_counted_module_takes_its_flops_and_passes_over_what_it_saved() -> None:
    found = timed(PLAIN, CPU, MODULE).terms_seconds
    forward = 2 * 1e9 / (1e11 * fitted.CPU_SUSTAINED_SHARE * fitted.MODULE_SHARE)
    assert found["matmul"] == pytest.approx(3 * forward)
    assert found["memory_bound"] == pytest.approx((5 * 2 * 4e6 + 10_000_000 * 3 * 4) / 2e10)
    assert found["launch"] == pytest.approx(fitted.KERNELS_OUTSIDE_LAYERS * fitted.CPU_OPERATION_SECONDS * BOTH)
    again = timed(replace(PLAIN, activation_checkpointing="full"), CPU, MODULE).terms_seconds
    assert again["recompute"] == pytest.approx(forward + 2 * 2 * 4e6 / 2e10)
    frozen = timed(replace(PLAIN, method="lora"), CPU, MODULE).terms_seconds
    assert frozen["matmul"] == pytest.approx(2 * forward)
    uncounted = MODULE.model_copy(update={"flops_per_item": None})
    assert timed(PLAIN, CPU, uncounted).terms_seconds["matmul"] == pytest.approx(3 * forward * 2e7 / 1e9)
    assert head_seconds(MODULE, PLAIN, CPU, 2) == 0


def test_the_head_is_a_product_and_its_loss() -> None:
    one = 2.0 * TOKENS * 4096 * 32000 / 1e11 / fitted.CPU_SUSTAINED_SHARE
    loss = TOKENS * 32000 * fitted.CPU_LOGIT_FLOPS["fp32"] / 1e11
    assert head_seconds(SHAPE, PLAIN, CPU, 2) == pytest.approx(3 * one + loss)
    assert head_seconds(SHAPE, replace(PLAIN, method="lora"), CPU, 2) == pytest.approx(2 * one + loss)
    split = replace(PLAIN, context_parallel_degree=2, tensor_parallel_degree=2)
    assert head_seconds(SHAPE, split, CPU, 2) == pytest.approx((3 * one + loss) / 4)
    # Megatron pads 32000 / 3 words to a multiple of 128
    padded = replace(PLAIN, engine="megatron", tensor_parallel_degree=3)
    assert head_seconds(SHAPE, padded, CPU, 2) == pytest.approx((3 * one + loss) * 84 * 128 / 32000)


def test_a_model_without_an_output_projection_has_none_to_compute() -> None:
    assert head_seconds(SHAPE.model_copy(update={"vocab_size": 0}), PLAIN, CPU, 2) == 0.0
    assert head_seconds(SHAPE, PLAIN, CPU, 2) > 0.0


def test_learned_positions_need_no_rotation() -> None:
    layout = replace(PLAIN, python_norms=True)
    learned = SHAPE.model_copy(update={"learned_positions": True})
    turned, plain = (timed(layout, MEMORY_ONLY, shape).terms_seconds["memory_bound"] for shape in (SHAPE, learned))
    # queries and keys of 4096 each, in each of 4 layers; MEMORY_ONLY takes 1e-12 s a byte, backward a multiple of it
    forward = 4 * TOKENS * fitted.EAGER_ROTARY_BYTES["fp32"] * 2 * 4096 * 1e-12
    assert turned - plain == pytest.approx(forward * (1 + fitted.ELEMENTWISE_BACKWARD))
