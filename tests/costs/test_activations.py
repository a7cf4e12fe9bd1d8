"""What a layer keeps, counted tensor by tensor from its operations: each line of a sum is one tensor of a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_model import SMALL

from stratadvisor.costs.activations import LayerBytes, layer_bytes, micro_batches_in_flight
from stratadvisor.costs.parameters import count_parameters
from stratadvisor.costs.states import recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

LLAMA = SMALL
GPT = LLAMA.model_copy(update={"gated_mlp": False, "learned_positions": True, "norm_bias": True})
SHARDED = Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=2, micro_batch_size=2)
HALF, SINGLE = 2, 4


def of(layout: Layout, shape: ModelShape = LLAMA) -> LayerBytes:
    return layer_bytes(shape, layout, recipe(layout, count_parameters(shape)))


def attention(element: int, residual: int, copies: int = 1, tensor: int = 1, hidden: float = 128) -> float:
    return (
        residual * hidden  # input of the norm
        + copies * element * hidden  # its output, for the three projections
        + 3 * element * 128 / tensor  # queries, keys and values, repeated to 8 heads
        + element * 128 / tensor  # what attention returns
        + 4 * 8 / tensor  # log-sum-exp of every head, fp32
    )


def rotary(element: int, tensor: int = 1, micro: int = 2) -> float:
    return 2 * 4 * 16 / micro + element * 128 / tensor  # cosines and sines once; the turned copy


def gated(element: int, tensor: int = 1, copies: int = 1, hidden: float = 128, kept: int = 4) -> float:
    return copies * element * hidden + kept * element * 320 / tensor  # gate, its activation, up, product


def norms(extra: int, hidden: float = 128) -> float:
    return 2 * hidden * extra


def test_a_llama_layer_in_16_bit_keeps_these_tensors() -> None:
    found = of(SHARDED)
    # an eager RMSNorm keeps its fp32 input, 2 bytes more than the 16-bit one, and the normalised value in fp32
    full = attention(HALF, HALF) + rotary(HALF) + HALF * 128 + gated(HALF) + norms(4 + 2)
    assert found.full == pytest.approx(full)
    assert (found.kept, found.recomputed) == (found.full, 0.0)
    assert found.transient == 2 * HALF * 320 + HALF * 128  # gradients of gate and up, and of the residual stream


def test_in_fp32_the_norm_keeps_only_the_normalised_value_besides() -> None:
    found = of(replace(SHARDED, precision="fp32"))
    full = attention(SINGLE, SINGLE) + rotary(SINGLE) + SINGLE * 128 + gated(SINGLE) + norms(4)
    assert found.full == pytest.approx(full)


def test_under_autocast_the_residual_stream_is_fp32_and_every_product_casts_the_norm() -> None:
    found = of(Layout(engine="ddp", micro_batch_size=2))
    full = attention(HALF, SINGLE, copies=3) + rotary(HALF) + SINGLE * 128 + gated(HALF, copies=2) + norms(4)
    assert found.full == pytest.approx(full)


def test_compiled_code_fuses_the_norms_and_computes_the_activation_again() -> None:
    found = of(replace(SHARDED, compiled=True))
    full = attention(HALF, HALF) + rotary(HALF) + HALF * 128 + gated(HALF, kept=3)
    assert found.full == pytest.approx(full)


def test_a_gpt_layer_has_no_rotary_and_a_plain_mlp() -> None:
    found = of(SHARDED, GPT)
    plain = HALF * 128 + 2 * HALF * 320  # input, before and after the activation
    assert found.full == pytest.approx(attention(HALF, HALF) + HALF * 128 + plain)
    assert found.transient == HALF * 320 + HALF * 128


def test_unfused_attention_keeps_the_probabilities() -> None:
    fused, plain = (of(replace(SHARDED, flash_attention=flag, sequence_length=512)) for flag in (True, False))
    assert plain.full - fused.full == pytest.approx(HALF * 8 * 512)


@pytest.mark.parametrize(("sequence_parallel", "hidden"), [(True, 64), (False, 128)])
def test_tensor_parallelism_divides_heads_and_widths_and_with_sequences_the_rest(
    sequence_parallel: bool, hidden: float
) -> None:
    found = of(replace(SHARDED, tensor_parallel_degree=2, sequence_parallel=sequence_parallel))
    full = attention(HALF, HALF, tensor=2, hidden=hidden) + rotary(HALF, 2) + HALF * hidden
    full += gated(HALF, tensor=2, hidden=hidden) + norms(6, hidden)
    assert found.full == pytest.approx(full)
    assert found.transient == pytest.approx(2 * HALF * 160 + HALF * hidden)


def test_adapters_keep_a_thin_tensor_of_every_matrix() -> None:
    full, lora = (of(replace(SHARDED, method=method, lora_rank=8)) for method in ("full", "lora"))  # type: ignore[arg-type]
    # four of attention, three of the MLP; the two norms, whose weights are frozen, keep no normalised value
    assert lora.full - full.full == pytest.approx(7 * 8 * HALF - 2 * 4 * 128)


def test_old_bitsandbytes_kept_what_every_four_bit_matrix_reads() -> None:
    new, old = (of(replace(SHARDED, method="qlora", frozen_inputs_kept=flag)) for flag in (False, True))
    assert old.full - new.full == pytest.approx(HALF * (2 * 128 + 320))


def test_full_checkpointing_keeps_a_layers_input_and_brings_the_rest_back() -> None:
    none, full = of(SHARDED), of(replace(SHARDED, activation_checkpointing="full"))
    assert (full.full, full.kept) == (none.full, HALF * 128)
    assert full.recomputed == pytest.approx(none.full - HALF * 128)


def test_selective_checkpointing_keeps_attention_and_every_second_product() -> None:
    found = of(replace(SHARDED, activation_checkpointing="selective"))
    kept = HALF * 128 + HALF * (128 + 128 + 64) + 4 * 8  # input; queries, output and keys; log-sum-exp
    assert found.kept == pytest.approx(kept + HALF * (320 + 128))  # one of gate and up, and the down projection
    gpt = of(replace(SHARDED, activation_checkpointing="selective"), GPT)
    assert gpt.kept == pytest.approx(kept + HALF * 320)


MIXTURE = LLAMA.model_copy(
    update={
        "num_experts": 6,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "num_dense_layers": 1,
        "dense_ffn_hidden_size": 640,
    }
)


def test_a_mixture_keeps_each_experts_input_and_output_and_the_routers_scores() -> None:
    found = of(SHARDED, MIXTURE)
    dense = HALF * 128 + 4 * HALF * 640
    inner = HALF * 2 * 128 + 4 * HALF * (2 + 1) * 320  # two copies of the token, two routed experts and the shared one
    router = HALF * 128 + 8 * 6  # its input, scores and weights of 6 experts in fp32
    outputs = 2 * (HALF * 128 + 12)  # of each routed expert, with its weight and place
    sparse = inner + router + outputs
    mlp = dense / 4 + sparse * 3 / 4
    assert found.full == pytest.approx(attention(HALF, HALF) + rotary(HALF) + HALF * 128 + mlp + norms(6))
    assert found.transient == pytest.approx(2 * HALF * 3 * 320 + HALF * 128)
    selective = of(replace(SHARDED, activation_checkpointing="selective"), MIXTURE)
    base = HALF * 128 + HALF * (128 + 128 + 64) + 4 * 8
    kept_sparse = HALF * (3 * 320 + 2 * 128) + 4 * 6
    assert selective.kept == pytest.approx(base + HALF * (640 + 128) / 4 + kept_sparse * 3 / 4)


def megatron(**changes: Any) -> Layout:
    return replace(Layout(engine="megatron", tensor_parallel_degree=2, sequence_length=512), **changes)


def test_megatron_keeps_fused_activations_and_keys_as_they_are() -> None:
    found = of(megatron())
    tokens = 2 * HALF * 64 + HALF * (128 + 128 + 64 + 64) / 2  # two inputs; queries, output, keys, values
    mlp = 2 * HALF * 64 + 3 * HALF * 160  # input and output; gate, up, product
    assert found.full == pytest.approx(tokens + mlp)
    assert found.transient == 2 * HALF * 160
    assert of(megatron(activation_checkpointing="full")).kept == HALF * 64
    whole = of(megatron(sequence_parallel=False))
    assert whole.full == pytest.approx(found.full + 4 * HALF * 64)


def test_megatrons_plain_attention_keeps_scores_and_with_dropout_its_masks() -> None:
    found = of(megatron(flash_attention=False), GPT)
    # Korthikanti et al., arXiv:2205.05198, section 4: 5 a s / h of the 34 + 5 a s / h bytes are scores: 2 softmax,
    # 1 mask and 2 its output, for 8 heads on 2 ranks; masks of a byte after attention and after the MLP
    scores = 5 * 8 / 2 * 512
    tokens = 2 * HALF * 64 + 64 + HALF * (128 + 128 + 64 + 64) / 2
    mlp = 2 * HALF * 64 + 2 * HALF * 160 + 64
    assert found.full == pytest.approx(tokens + scores + mlp)
    assert of(megatron(flash_attention=False, activation_checkpointing="selective"), GPT).kept == pytest.approx(
        tokens + mlp
    )
    still = of(megatron(flash_attention=False, dropout=False), GPT)
    assert still.full == pytest.approx(tokens + mlp - 2 * 64 + 2 * 8 / 2 * 512)
    assert found.transient == HALF * 160


def test_megatrons_mixture_adds_copies_and_scores_of_the_router() -> None:
    found = of(megatron(), MIXTURE)
    tokens = 2 * HALF * 64 + HALF * (128 + 128 + 64 + 64) / 2
    width = (640 / 4 + 3 * 320 * 3 / 4) / 2  # a dense layer of four, and two routed experts and a shared one
    mlp = HALF * 64 + 2 * HALF * 64 + 3 * HALF * width + 2 * HALF * 64 + 8 * 6
    assert found.full == pytest.approx(tokens + mlp)


@pytest.mark.parametrize(
    ("stages", "accumulation", "chunks", "held"),
    [
        (1, 8, 1, (1.0,)),
        (4, 8, 1, (4.0, 3.0, 2.0, 1.0)),  # 1F1B, arXiv:2104.04473, section 2.2
        (4, 2, 1, (2.0, 2.0, 2.0, 1.0)),
        # interleaved: 1 + (p - 1) / (p v) as many, and never more than there are
        (4, 8, 2, (4 * 1.375, 3 * 1.375, 2 * 1.375, 1.375)),
        (4, 4, 2, (4.0, 4.0, 2.75, 1.375)),
        (4, 3, 2, (3.0, 3.0, 2.0, 1.0)),
    ],
)
def test_a_stage_holds_the_micro_batches_that_wait_for_their_backward(
    stages: int, accumulation: int, chunks: int, held: tuple[float, ...]
) -> None:
    layout = Layout(
        engine="megatron",
        pipeline_parallel_degree=stages,
        gradient_accumulation_steps=accumulation,
        virtual_pipeline_chunks=chunks,
    )
    assert tuple(micro_batches_in_flight(layout, stage) for stage in range(stages)) == pytest.approx(held)


def test_deepspeed_around_a_divided_model_runs_megatrons_layers() -> None:
    same = Layout(engine="deepspeed", tensor_parallel_degree=2, sequence_length=512)
    assert of(same).full == of(megatron()).full
    piped = Layout(engine="deepspeed", pipeline_parallel_degree=2, sequence_length=512)
    assert of(piped).full == of(megatron(tensor_parallel_degree=1)).full
    assert of(Layout(engine="deepspeed", sequence_length=512)).full > of(megatron(tensor_parallel_degree=1)).full
