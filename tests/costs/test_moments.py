"""Scores, gathered units and what is alive at each moment, counted from round figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_model import SMALL

from stratadvisor.costs.activations import layer_bytes, norm_extra_bytes
from stratadvisor.costs.buffers import (
    CPU_DEEPSPEED_BYTES,
    CPU_PROCESS_BYTES,
    CUDA_CONTEXT_BYTES,
    DEEPSPEED_BUCKET,
    MEGATRON_BYTES,
    NCCL_BYTES,
    bucket_bytes,
    context_bytes,
    gathered_bytes,
    zero_bucket_elements,
)
from stratadvisor.costs.held import Held, held
from stratadvisor.costs.logits import score_bytes
from stratadvisor.costs.moments import (
    AUTOCAST_MODULE_SHARE,
    MODULE_TRANSIENT_SHARE,
    Alive,
    kept_activation_bytes,
    moments,
    whole_activation_bytes,
)
from stratadvisor.costs.parameters import RankParameters, count_parameters, rank_parameters
from stratadvisor.costs.reserve import PIPELINE_HOLES_FRACTION, stranded_bytes, wrapping_bytes
from stratadvisor.costs.states import Recipe, recipe
from stratadvisor.schema.layout import Layout, Loss
from stratadvisor.schema.workload import ModelShape

SHAPE = SMALL
MODULE = ModelShape(
    name="m",
    family="module",
    num_parameters=1000,
    num_active_parameters=1000,
    flops_per_item=1.0,
    saved_bytes_per_item=9e3,
)
ONE = Layout(engine="torch", micro_batch_size=2, sequence_length=512)
TOKENS = 1024
HEAD = 1000 * 128
LAYER = (10_000_000 - 2 * HEAD) / 4


def parts(
    layout: Layout, shape: ModelShape = SHAPE, stage: int = 0
) -> tuple[Recipe, RankParameters, Held, dict[str, Alive]]:
    counts = count_parameters(shape)
    kinds, local = recipe(layout, counts), rank_parameters(counts, layout, stage)
    states = held(counts, local, layout, kinds, server_share=1.0)
    return kinds, local, states, moments(shape, layout, counts, kinds, local, states, stage)


@pytest.mark.parametrize(
    ("layout", "forward", "backward"),
    [
        # fp32 copy of the scores and log-probabilities besides; backward log-probabilities and two gradients
        (ONE, 8 + 2, 12),
        (replace(ONE, precision="fp32"), 8, 12),
        (replace(ONE, engine="megatron"), 10, 10),
        (replace(ONE, engine="megatron", precision="fp32"), 12, 12),
    ],
)
def test_bytes_of_a_score(layout: Layout, forward: int, backward: int) -> None:
    kinds = recipe(layout, count_parameters(SHAPE))
    # the last hidden state as the residual stream and as the product's input, and what its norm keeps
    hidden = TOKENS * (128 * (kinds.residual + kinds.compute) + norm_extra_bytes(SHAPE, layout, kinds))
    found = score_bytes(SHAPE, layout, kinds, TOKENS)
    assert found == pytest.approx((hidden + forward * TOKENS * 1000, hidden + backward * TOKENS * 1000))
    halved = score_bytes(SHAPE, replace(layout, tensor_parallel_degree=2), kinds, TOKENS)
    assert halved[1] - hidden == pytest.approx((found[1] - hidden) / 2)


def test_contexts_add_a_communicator_for_every_kind_of_group() -> None:
    base = Layout(engine="fsdp2")
    assert context_bytes(base, "cuda") == CUDA_CONTEXT_BYTES
    for change in ("data_parallel_replicate_degree", "data_parallel_shard_degree", "context_parallel_degree"):
        assert context_bytes(replace(base, **{change: 2}), "cuda") == CUDA_CONTEXT_BYTES + NCCL_BYTES
    hybrid = replace(base, data_parallel_replicate_degree=2, data_parallel_shard_degree=2)
    assert context_bytes(hybrid, "cuda") == CUDA_CONTEXT_BYTES + 2 * NCCL_BYTES
    for change in ("tensor_parallel_degree", "pipeline_parallel_degree"):
        divided = replace(base, engine="megatron", **{change: 2})
        assert context_bytes(divided, "cuda") == CUDA_CONTEXT_BYTES + MEGATRON_BYTES  # of every kind of group
    assert context_bytes(hybrid, "cpu") == CPU_PROCESS_BYTES
    assert context_bytes(replace(base, engine="deepspeed"), "cpu") == CPU_PROCESS_BYTES + CPU_DEEPSPEED_BYTES


def test_zero_3_gathers_what_runs_and_what_is_fetched_ahead() -> None:
    layout = replace(ONE, engine="deepspeed", sharding="parameters", data_parallel_shard_degree=8)
    kinds, local, _, _ = parts(layout)
    assert gathered_bytes(local, layout, kinds, "forward") == pytest.approx(2 * min(10e6, 3 * LAYER))
    # a head larger than two layers counts in their place, a bucket as well
    wide = replace(local, head=6e6)
    assert gathered_bytes(wide, layout, kinds, "forward") == pytest.approx(2 * (6e6 + LAYER))
    huge = RankParameters(layers=100, dense=100 * 1e8, experts=0, root=2e8, head=1e8)
    assert zero_bucket_elements(huge.total) == 2e8
    assert gathered_bytes(huge, layout, kinds, "forward") == pytest.approx(2 * 3e8)
    small = RankParameters(layers=1000, dense=1000 * 1e7, experts=0, root=2e7, head=1e7)
    assert gathered_bytes(small, layout, kinds, "forward") == pytest.approx(2 * (2e8 + 1e7))


def test_fsdp2_at_each_moment() -> None:
    layout = replace(ONE, engine="fsdp2", sharding="parameters", data_parallel_shard_degree=4)
    kinds, local, _, _ = parts(layout)
    root = 2 * HEAD
    gathered = [gathered_bytes(local, layout, kinds, moment) for moment in ("forward", "start", "end", "done")]
    # 16-bit root and layers; in fp32 the gradients of a layer on their way, and of the root in the end
    expected = [2 * (root + LAYER), 2 * (root + 2 * LAYER), 2 * (root + 2 * LAYER) + 4 * LAYER, (2 + 4) * root]
    assert gathered == pytest.approx(expected)
    frozen = replace(layout, method="lora")
    gathered = [gathered_bytes(local, frozen, kinds, moment) for moment in ("forward", "start", "end", "done")]
    assert gathered == pytest.approx([*expected[:2], expected[1], 0])


def test_buckets_of_deepspeed() -> None:
    layout = replace(ONE, engine="deepspeed", data_parallel_shard_degree=8)
    kinds, local, _, _ = parts(layout)
    bucket = 2 * zero_bucket_elements(10_000_000)
    for sharding, copies in (("none", 0), ("optimizer", 3), ("gradients", 3), ("parameters", 2)):
        found = bucket_bytes(local, replace(layout, sharding=sharding), kinds)  # type: ignore[arg-type]
        assert found == pytest.approx(copies * bucket)
    assert bucket_bytes(local, replace(layout, engine="fsdp2", sharding="parameters"), kinds) == 0
    # around a model divided by Megatron-LM: one bucket of gradients and one of gathered weights, of DeepSpeed's default
    # size, at most all there is
    divided = replace(layout, sharding="optimizer", tensor_parallel_degree=2, precision="fp16")
    assert bucket_bytes(local, divided, kinds) == pytest.approx(2 * 2 * 10e6)
    large = replace(local, dense=9e9, root=1e9)
    pipeline = replace(divided, tensor_parallel_degree=1, pipeline_parallel_degree=2)
    for each in (divided, pipeline):
        assert bucket_bytes(large, each, kinds) == 2 * 2 * DEEPSPEED_BUCKET


def test_fp32_sums_of_gradients_are_cast_and_flattened() -> None:
    layout = replace(
        ONE, engine="deepspeed", sharding="optimizer", data_parallel_shard_degree=8, pipeline_parallel_degree=2
    )
    kinds, local, _, _ = parts(layout)
    large = replace(local, dense=2e9, root=1e9)
    assert kinds.gradient == 2 + 4
    # the embedding is larger than a bucket: cast to fp32 to be added, and flattened alone for the all-reduce
    assert bucket_bytes(large, layout, kinds) == 2 * DEEPSPEED_BUCKET + 4 * 1e9 + 4 * 1e9
    alone = replace(layout, data_parallel_shard_degree=1)
    assert bucket_bytes(large, alone, kinds) == 2 * DEEPSPEED_BUCKET + 4 * 1e9
    # without ZeRO only the flat copy, in the gradients' own format
    plain = replace(layout, sharding="none", precision="fp32")
    kinds = recipe(plain, count_parameters(SHAPE))
    assert bucket_bytes(large, plain, kinds) == 4 * 1e9
    assert bucket_bytes(large, replace(plain, data_parallel_shard_degree=1), kinds) == 0


@pytest.mark.parametrize(("loss", "forward", "backward"), [("whole", 10, 12), ("chunked", 2, 4), ("returned", 12, 16)])
def test_scores_by_what_the_loss_does_with_them(loss: Loss, forward: int, backward: int) -> None:
    layout = replace(ONE, precision="bf16_pure", compiled=True, loss=loss)
    kinds = recipe(layout, count_parameters(SHAPE))
    hidden = TOKENS * 128 * (2 + 2)  # of the last norm
    scores = TOKENS * 1000
    assert score_bytes(SHAPE, layout, kinds, TOKENS) == pytest.approx(
        (hidden + forward * scores, hidden + backward * scores)
    )


def test_returned_scores_cost_another_block_of_them() -> None:
    layout = replace(ONE, precision="bf16_pure")
    kinds, local, states, found = parts(layout)
    plain, returned = (
        stranded_bytes(SHAPE, replace(layout, loss=loss), kinds, local, states, found, 0.0)["optimizer"]
        for loss in ("whole", "returned")
    )
    assert returned - plain == 4 * TOKENS * 1000


PIPELINE = replace(
    ONE,
    engine="megatron",
    pipeline_parallel_degree=2,
    gradient_accumulation_steps=8,
    activation_checkpointing="full",
)


def test_inputs_kept_for_micro_batches_in_flight_leave_holes() -> None:
    kinds, local, states, found = parts(PIPELINE)
    in_flight = kept_activation_bytes(SHAPE, PIPELINE, kinds, local, 0)
    assert in_flight == pytest.approx(2 * 2 * TOKENS * 128 * 2)  # two micro-batches of two layers' inputs, 16 bit
    stranded = stranded_bytes(SHAPE, PIPELINE, kinds, local, states, found, in_flight)
    assert stranded["backward start"] == pytest.approx(PIPELINE_HOLES_FRACTION * in_flight)
    assert kept_activation_bytes(SHAPE, PIPELINE, kinds, local, 1) == 0  # the last stage has one at a time
    assert kept_activation_bytes(SHAPE, replace(PIPELINE, activation_checkpointing="none"), kinds, local, 0) == 0


def test_gradients_of_a_single_micro_batch_find_no_room_among_freed_activations() -> None:
    layout = replace(ONE, engine="deepspeed", tensor_parallel_degree=2, precision="fp32")
    kinds, local, states, found = parts(layout)
    assert found["loss forward"][0] == 0
    stranded = stranded_bytes(SHAPE, layout, kinds, local, states, found, 0.0)
    assert stranded["loss forward"] == pytest.approx(states.gradients)


def test_flat_units_are_made_whole_before_they_are_divided() -> None:
    layout = replace(
        ONE,
        engine="fsdp2",
        sharding="parameters",
        data_parallel_shard_degree=2,
        precision="bf16_pure",
        flat_units=True,
    )
    kinds, local, _, _ = parts(layout)
    # a unit and its flat copy, of the root and of a layer; then the root, and three layers under way
    found = wrapping_bytes(local, layout, kinds, 2.0)
    assert found == pytest.approx(2 * (2 * (2 * HEAD + LAYER) + 2 * HEAD + 3 * LAYER))
    assert wrapping_bytes(local, replace(layout, flat_units=False), kinds, 2.0) == 0


def test_moments_of_one_device_under_autocast() -> None:
    kinds, _local, states, found = parts(ONE)
    layer = layer_bytes(SHAPE, ONE, kinds)
    kept, working = 4 * TOKENS * layer.full, TOKENS * layer.transient
    forward, backward = score_bytes(SHAPE, ONE, kinds, TOKENS)
    casts = 2 * (4 * LAYER + HEAD)  # 16-bit copies of layers and head stay till backward without checkpointing
    assert found["loss forward"] == pytest.approx((0, kept, forward, casts, 0))
    assert found["loss backward"] == pytest.approx((0, kept, backward, casts, 0))
    head = (4 + 2) * HEAD  # the head's gradient in 16 bit and in fp32
    assert found["backward head"] == pytest.approx((head, kept, 2 * TOKENS * 1000, casts, 0))
    assert found["backward start"] == pytest.approx((4 * HEAD, kept + working, 0, casts, 0))
    one_layer = 40e6 * LAYER / 10e6
    assert found["backward next"] == pytest.approx((4 * HEAD + one_layer, kept * 3 / 4 + working, 0, 2 * LAYER, 0))
    # one layer and the embedding still lack their gradients
    rest = 40e6 * (1 - (LAYER + HEAD) / 10e6)
    assert found["backward end"] == pytest.approx((rest, kept / 4 + working, 0, 2 * LAYER, 0))
    assert found["backward done"] == pytest.approx((40e6, 0, 0, 2 * LAYER, 0))
    assert found["optimizer"] == pytest.approx((states.gradients, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("change", "keeps"),
    [
        ({}, False),
        ({"gradient_accumulation_steps": 2}, True),
        ({"engine": "ddp"}, True),
        ({"engine": "megatron"}, True),
        ({"engine": "fsdp2", "sharding": "parameters", "data_parallel_shard_degree": 4}, False),
        ({"engine": "deepspeed", "sharding": "optimizer", "data_parallel_shard_degree": 4}, False),
        ({"engine": "deepspeed", "sharding": "parameters", "data_parallel_shard_degree": 4}, True),
        ({"engine": "local", "data_parallel_replicate_degree": 4}, False),
        ({"engine": "local", "data_parallel_shard_degree": 4}, True),
    ],
)
def test_gradients_that_exist_while_a_micro_batch_runs_forward(change: dict[str, object], keeps: bool) -> None:
    _, _, states, found = parts(replace(ONE, **change))
    assert states.gradients > 0
    assert found["loss forward"][0] == (states.gradients if keeps else 0)
    end = found["backward end"][0]
    assert end == pytest.approx(states.gradients) if keeps else end < states.gradients


def test_an_exchange_is_a_moment_of_its_own() -> None:
    _, _, states, found = parts(Layout(engine="local", data_parallel_replicate_degree=4))
    assert states.step_copy > 0
    assert found["optimizer exchange"] == (0, 0, 0, 0, states.step_copy)
    assert found["optimizer"] == (states.gradients, 0, 0, 0, 0)
    _, _, group, found = parts(Layout(engine="local", data_parallel_shard_degree=4))
    assert found["optimizer exchange"] == (group.gradients, 0, 0, 0, group.step_copy)
    _, _, zero, found = parts(Layout(engine="deepspeed", data_parallel_shard_degree=4, sharding="optimizer"))
    assert found["optimizer"] == (zero.gradients, 0, 0, 0, zero.step_copy)


def test_a_pipeline_keeps_the_outputs_of_waiting_micro_batches_and_the_last_stage_has_the_loss() -> None:
    layout = replace(ONE, engine="megatron", pipeline_parallel_degree=2, gradient_accumulation_steps=8)
    kinds, _, states, first = parts(layout)
    layer = layer_bytes(SHAPE, layout, kinds)
    outputs = TOKENS * 128 * 2
    waiting = 2 * (2 * TOKENS * layer.full + outputs)
    assert first["backward start"][1] == pytest.approx(waiting + TOKENS * layer.transient)
    assert not [name for name in first if name.startswith("loss")]
    _, _, last_states, last = parts(layout, stage=1)
    assert last["loss forward"][1] == pytest.approx(2 * TOKENS * layer.full)  # one at a time, no output to keep
    assert (states.gradients, last_states.gradients) == pytest.approx((4 * (2 * LAYER + HEAD),) * 2)


def test_activations_without_checkpointing_are_the_measure_of_what_it_saves() -> None:
    kinds, local, _, _ = parts(PIPELINE)
    layer = layer_bytes(SHAPE, PIPELINE, kinds)
    expected = 2 * (2 * TOKENS * layer.full + TOKENS * 128 * 2) + TOKENS * layer.transient
    assert whole_activation_bytes(SHAPE, PIPELINE, kinds, local, 0) == pytest.approx(expected)
    one = TOKENS * (2 * layer.full + layer.transient)
    assert whole_activation_bytes(SHAPE, PIPELINE, kinds, local, 1) == pytest.approx(one)
    split = replace(PIPELINE, context_parallel_degree=2)
    assert whole_activation_bytes(SHAPE, split, kinds, local, 1) == pytest.approx(one / 2)


def test_a_counted_module_keeps_what_was_counted_by_number_format() -> None:
    for layout, share in (
        (ONE, AUTOCAST_MODULE_SHARE),
        (replace(ONE, precision="fp32"), 1.0),
        (replace(ONE, precision="bf16_pure"), 0.5),
    ):
        _, _, _, found = parts(layout, MODULE)
        saved = 2 * 9e3 * share
        assert found["backward start"][1] == pytest.approx(saved * (1 + MODULE_TRANSIENT_SHARE))
        assert "loss forward" not in found


def test_freed_blocks_that_nothing_fits_into() -> None:
    layout = replace(ONE, activation_checkpointing="full")
    kinds, local, states, found = parts(layout)
    stranded = stranded_bytes(SHAPE, layout, kinds, local, states, found, 0.0)
    # the scores of 1000 words are larger than any tensor of a layer of 320: blocks of its forward pass stay
    layers = TOKENS * (3 * 2 * 320 + 2 * 4 * 128)
    scores = 2 * TOKENS * 1000
    assert (stranded["loss forward"], stranded["loss backward"]) == pytest.approx((layers, scores + layers))
    assert stranded["optimizer"] == 0
    plain = stranded_bytes(SHAPE, ONE, kinds, local, states, found, 0.0)
    assert (plain["loss forward"], plain["loss backward"]) == pytest.approx((0, scores))
    single = replace(layout, precision="fp32")
    kinds, local, states, found = parts(single)
    fp32 = stranded_bytes(SHAPE, single, kinds, local, states, found, 0.0)
    assert fp32["loss backward"] == fp32["loss forward"] == pytest.approx(TOKENS * (3 * 4 * 320 + 2 * 4 * 128))
    # a vocabulary whose scores fit into a layer's blocks strands none of them
    few = SHAPE.model_copy(update={"vocab_size": 160})
    kinds, local, states, found = parts(layout, few)
    assert stranded_bytes(few, layout, kinds, local, states, found, 0.0)["loss forward"] == 0


def test_fsdp_strands_what_it_gathered_and_deepspeed_its_flat_copies() -> None:
    layout = replace(ONE, engine="fsdp2", sharding="parameters", data_parallel_shard_degree=4)
    kinds, local, states, found = parts(layout)
    stranded = stranded_bytes(SHAPE, layout, kinds, local, states, found, 0.0)
    most = 2 * (2 * HEAD + 2 * LAYER)  # root and two layers, gathered in 16 bit at the start of backward
    assert stranded["optimizer"] == pytest.approx(most)
    # divided gradients, fp32, lie on the stream of their reduce-scatter and leave room to nothing else
    assert found["backward start"][0] == pytest.approx(2 * HEAD)
    assert stranded["backward start"] == pytest.approx(states.gradients - 2 * HEAD)
    assert states.gradients == pytest.approx(10e6)
    assert stranded["backward done"] == pytest.approx(max(0.0, most - found["backward done"][3]))
    zero = replace(layout, engine="deepspeed", sharding="optimizer")
    kinds, local, states, found = parts(zero)
    stranded = stranded_bytes(SHAPE, zero, kinds, local, states, found, 0.0)
    assert stranded["backward start"] == pytest.approx(states.step_copy)
    assert stranded["optimizer"] == pytest.approx(
        max(sum(alive[1:]) for name, alive in found.items() if name != "optimizer")
    )


def test_a_layer_without_a_gate_leaves_two_blocks_of_its_width() -> None:
    layout = replace(ONE, activation_checkpointing="full")
    plain = SHAPE.model_copy(update={"gated_mlp": False})
    kinds, local, states, found = parts(layout, plain)
    # before and after the activation function, and twice the residual stream
    layers = TOKENS * (2 * 2 * 320 + 2 * 4 * 128)
    assert stranded_bytes(plain, layout, kinds, local, states, found, 0.0)["loss forward"] == pytest.approx(layers)


def test_a_group_of_two_that_averages_in_every_step_keeps_ddps_gradients() -> None:
    # DDP's buckets hold the gradients from one step to the next; a rank alone frees them before the next forward pass
    alone, pair = (
        parts(replace(ONE, engine="local", data_parallel_shard_degree=degree))[3]["loss forward"][0]
        for degree in (1, 2)
    )
    assert (alone, pair) == (0, pytest.approx(4 * 10_000_000))


def test_four_bit_units_are_gathered_as_they_are_stored_and_shards_on_the_host_are_copied_first() -> None:
    layout = Layout(
        engine="fsdp2",
        sharding="parameters",
        data_parallel_shard_degree=4,
        precision="bf16_pure",
        method="qlora",
    )
    kinds, local, _, _ = parts(layout)
    root, unit = 2 * 2 * HEAD, 0.5 * LAYER
    for moment, units in (("forward", 1), ("start", 2)):
        found = gathered_bytes(local, layout, kinds, moment)  # type: ignore[arg-type]
        assert found == pytest.approx(root + units * unit)
        away = replace(layout, parameter_offload="cpu", optimizer_offload="cpu")
        copied = gathered_bytes(local, away, kinds, moment)  # type: ignore[arg-type]
        assert copied == pytest.approx(found * (1 + 1 / 4))


def test_flat_units_are_three_in_flight() -> None:
    layout = replace(
        ONE, engine="fsdp2", sharding="parameters", data_parallel_shard_degree=4, precision="bf16_pure", method="lora"
    )
    kinds, local, states, found = parts(layout)
    plain, flat = (
        stranded_bytes(SHAPE, replace(layout, flat_units=flag), kinds, local, states, found, 0.0)["optimizer"]
        for flag in (False, True)
    )
    assert flat - plain == pytest.approx(2 * LAYER)


def test_returned_scores_live_to_the_end_of_the_step() -> None:
    plain, returned = (
        parts(replace(ONE, precision="bf16_pure", loss=loss))[3]
        for loss in ("whole", "returned")  # type: ignore[arg-type]
    )
    for name, alive in returned.items():
        if not name.startswith("loss"):
            assert alive[2] - plain[name][2] == pytest.approx(4 * TOKENS * 1000)
