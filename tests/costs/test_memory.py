from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.catalog import models
from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.memory import estimate
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.workload import ModelShape
from stratadvisor.units import GIB

SEVEN_BILLION = shape_for_size(7e9)
PARAMETERS = 6_738_415_616


MODULE = ModelShape(
    name="convolutions",
    family="module",
    num_parameters=25_000_000,
    num_active_parameters=25_000_000,
    flops_per_item=4e9,
    saved_bytes_per_item=90e6,
)


def known(name: str) -> ModelShape:
    shape = MODULE if name == MODULE.name else models.lookup(name)
    assert shape is not None
    return shape


def memory(shape: ModelShape, kind: str = "cuda", **layout: Any) -> MemoryEstimate:
    return estimate(shape, Layout(**layout), device_kind=kind, ranks_per_node=8)  # type: ignore[arg-type]


def peak(shape: ModelShape, **layout: Any) -> float:
    return memory(shape, **layout).peak_bytes.likely


layouts = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(["torch", "ddp", "fsdp2", "deepspeed", "megatron", "local", "async"]),
        "data_parallel_shard_degree": st.sampled_from([1, 2, 8, 64]),
        "tensor_parallel_degree": st.sampled_from([1, 4]),
        "pipeline_parallel_degree": st.sampled_from([1, 2, 4]),
        "context_parallel_degree": st.sampled_from([1, 2]),
        "sharding": st.sampled_from(["none", "optimizer", "gradients", "parameters"]),
        "micro_batch_size": st.sampled_from([1, 3, 16]),
        "gradient_accumulation_steps": st.sampled_from([1, 8]),
        "sequence_length": st.sampled_from([512, 4096]),
        "precision": st.sampled_from(["fp32", "bf16", "fp16", "bf16_pure"]),
        "optimizer": st.sampled_from(["adamw", "adamw8bit", "adafactor", "sgd", "muon"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "optimizer_offload": st.sampled_from(["none", "cpu", "nvme"]),
        "parameter_offload": st.sampled_from(["none", "cpu", "nvme"]),
        "method": st.sampled_from(["full", "lora", "qlora"]),
        "flash_attention": st.booleans(),
        "compiled": st.booleans(),
    }
)
shapes = st.sampled_from(
    ["llama-2-7b", "gpt2", "mixtral-8x7b", "qwen3-30b-a3b", "bert-base", "vit-base-16", MODULE.name]
)
examples = settings(deadline=None, derandomize=True, max_examples=100)


@given(shapes, layouts, st.sampled_from(["cuda", "cpu"]))
@examples
def test_terms_are_not_negative_and_add_up_to_the_peak(name: str, layout: dict[str, Any], kind: str) -> None:
    found = memory(known(name), kind, **layout)
    assert all(value >= 0 for value in found.terms_bytes.values())
    assert sum(found.terms_bytes.values()) == pytest.approx(found.peak_bytes.likely)
    assert found.peak_phase in ("loss", "backward", "optimizer")
    assert found.host_bytes_per_rank >= 0


@given(shapes, layouts)
@examples
def test_more_checkpointing_never_needs_more(name: str, layout: dict[str, Any]) -> None:
    shape = known(name)
    none, selective, full = (
        peak(shape, **{**layout, "activation_checkpointing": kind}) for kind in ("none", "selective", "full")
    )
    assert full <= selective * (1 + 1e-9)
    assert selective <= none * (1 + 1e-9)


@given(shapes, layouts, st.sampled_from(["deepspeed", "megatron"]))
@examples
def test_a_higher_zero_stage_never_needs_more_states(name: str, layout: dict[str, Any], engine: str) -> None:
    changes = {"engine": engine, "optimizer_offload": "none", "parameter_offload": "none"}
    plain = {**layout, **changes}
    held = []
    for stage in ("optimizer", "gradients", "parameters"):
        terms = memory(known(name), **{**plain, "sharding": stage}).terms_bytes
        held.append(terms["parameters"] + terms["optimizer_states"] + terms["adapters"])
    assert held[1] <= held[0] * (1 + 1e-9)
    assert held[2] <= held[1] * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e9, 7e9, 30e9, 70e9])
@pytest.mark.parametrize("ranks", [4, 8, 64])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_higher_zero_stage_never_has_a_higher_peak(size: float, ranks: int, checkpointing: str) -> None:
    shape = shape_for_size(size)
    peaks = [
        peak(
            shape,
            engine="deepspeed",
            data_parallel_shard_degree=ranks,
            sharding=stage,
            activation_checkpointing=checkpointing,
            gradient_accumulation_steps=2,
        )
        for stage in ("optimizer", "gradients", "parameters")
    ]
    assert peaks == sorted(peaks, reverse=True)


@given(shapes, layouts)
@examples
def test_more_sequences_or_longer_ones_never_need_less(name: str, layout: dict[str, Any]) -> None:
    shape = known(name)
    once = peak(shape, **layout)
    assert peak(shape, **{**layout, "micro_batch_size": 2 * layout["micro_batch_size"]}) >= once
    assert peak(shape, **{**layout, "sequence_length": 2 * layout["sequence_length"]}) >= once


@given(layouts)
@examples
def test_a_larger_model_never_needs_less(layout: dict[str, Any]) -> None:
    peaks = [peak(shape_for_size(size), **layout) for size in (1e9, 7e9, 70e9)]
    assert peaks == sorted(peaks)


def test_mixed_precision_adam_holds_sixteen_bytes_per_parameter() -> None:
    # Rajbhandari et al., arXiv:1910.02054, section 3: 16 bytes; 7B: 107.8 GB, more than an 80 GB card
    terms = memory(SEVEN_BILLION, gradient_accumulation_steps=2, activation_checkpointing="full").terms_bytes
    states = terms["parameters"] + terms["gradients"] + terms["optimizer_states"]
    assert states == pytest.approx(16 * PARAMETERS)
    assert states > 79 * GIB


@pytest.mark.parametrize(
    ("stage", "bytes_each"),
    # Rajbhandari et al., figure 1, 64 ranks: 4 + 12/64, 2 + 14/64, 16/64 bytes per parameter
    [("optimizer", 4 + 12 / 64), ("gradients", 2 + 14 / 64), ("parameters", 16 / 64)],
)
def test_zero_stages_divide_as_published(stage: Any, bytes_each: float) -> None:
    terms = memory(
        SEVEN_BILLION,
        engine="deepspeed",
        sharding=stage,
        data_parallel_shard_degree=64,
        gradient_accumulation_steps=2,
        micro_batch_size=16,
    ).terms_bytes
    assert terms["parameters"] + terms["gradients"] + terms["optimizer_states"] == pytest.approx(
        bytes_each * PARAMETERS
    )


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("adamw", 8.0), ("adamw8bit", 2 + 8 / 256), ("sgd", 0.0)])
def test_optimizer_states_per_parameter(optimizer: Any, bytes_each: float) -> None:
    terms = memory(SEVEN_BILLION, optimizer=optimizer).terms_bytes
    assert terms["optimizer_states"] == pytest.approx(bytes_each * PARAMETERS)


def test_adafactor_and_muon_lie_between_none_and_adam() -> None:
    adafactor, muon, adam = (
        memory(SEVEN_BILLION, optimizer=name).terms_bytes["optimizer_states"] for name in ("adafactor", "muon", "adamw")
    )
    assert 0 < adafactor < 0.01 * adam
    assert adam / 2 < muon < adam


def test_hsdp_divides_by_the_shard_group_only() -> None:
    flat = memory(SEVEN_BILLION, engine="fsdp2", sharding="parameters", data_parallel_shard_degree=64).terms_bytes
    hybrid = memory(
        SEVEN_BILLION,
        engine="fsdp2",
        sharding="parameters",
        data_parallel_shard_degree=8,
        data_parallel_replicate_degree=8,
    ).terms_bytes
    assert hybrid["parameters"] == pytest.approx(8 * flat["parameters"])


def test_offloaded_states_move_to_the_host() -> None:
    plain = {"engine": "deepspeed", "sharding": "gradients", "activation_checkpointing": "full"}
    on_device, on_host = memory(SEVEN_BILLION, **plain), memory(SEVEN_BILLION, **plain, optimizer_offload="cpu")
    assert on_host.terms_bytes["optimizer_states"] == 0
    assert on_host.peak_bytes.likely < on_device.peak_bytes.likely - 11 * PARAMETERS
    # at least master weights, two moments and fp32 gradients: too much for 64 GiB, little for 256 GiB
    assert 64 * GIB < 16 * PARAMETERS <= on_host.host_bytes_per_rank < 256 * GIB
    on_disk = memory(SEVEN_BILLION, **plain, optimizer_offload="nvme")
    assert on_disk.nvme_bytes_per_rank == pytest.approx(12 * PARAMETERS)
    assert on_disk.host_bytes_per_rank < on_host.host_bytes_per_rank


def test_a_cpu_rank_counts_what_it_offloads_to_itself() -> None:
    plain = {"engine": "deepspeed", "sharding": "gradients", "activation_checkpointing": "full"}
    offloaded = memory(SEVEN_BILLION, "cpu", **plain, optimizer_offload="cpu")
    assert offloaded.peak_bytes.likely > 12 * PARAMETERS
    assert offloaded.host_bytes_per_rank == pytest.approx(offloaded.peak_bytes.likely)


def test_lora_at_four_thousand_tokens_fits_a_24_gb_card_only_with_checkpointing() -> None:
    # arithmetic of the usual report: 13.5 GB of frozen weights, about 18 GB of activations
    plain = {"method": "lora", "lora_rank": 8, "sequence_length": 4096}
    assert memory(SEVEN_BILLION, **plain).terms_bytes["activations"] > 16e9
    assert memory(SEVEN_BILLION, **plain).peak_bytes.low > 24 * GIB
    assert memory(SEVEN_BILLION, **plain, activation_checkpointing="full").peak_bytes.high < 24 * GIB


def test_qlora_of_7b_fits_16_gb() -> None:
    found = memory(SEVEN_BILLION, method="qlora", activation_checkpointing="full")
    assert found.peak_bytes.high < 16 * GIB
    # 4.127 bits per adapted parameter (arXiv:2305.14314, section 3), embedding and head in fp32
    adapted = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert found.terms_bytes["parameters"] == pytest.approx(4.127 / 8 * adapted + 4 * (PARAMETERS - adapted), rel=0.001)


def test_long_sequences_with_a_large_vocabulary_peak_at_the_loss() -> None:
    # 32768 tokens, 152064 scores: 50 GB at 10 bytes each, whatever the sharding
    found = memory(
        known("qwen2.5-7b"),
        engine="deepspeed",
        sharding="parameters",
        data_parallel_shard_degree=8,
        sequence_length=32768,
        method="lora",
        activation_checkpointing="full",
    )
    assert found.peak_phase == "loss"
    assert found.terms_bytes["logits"] > 10 * 32768 * 152064


def test_diloco_holds_the_common_weights_and_their_momentum() -> None:
    plain = {"activation_checkpointing": "full", "data_parallel_replicate_degree": 4}
    alone = memory(SEVEN_BILLION, **plain)
    outer = memory(SEVEN_BILLION, engine="local", outer_optimizer=True, **plain)
    assert outer.terms_bytes["optimizer_states"] - alone.terms_bytes["optimizer_states"] == 8 * PARAMETERS
    inside_nodes = memory(
        SEVEN_BILLION,
        engine="local",
        data_parallel_replicate_degree=4,
        data_parallel_shard_degree=8,
        activation_checkpointing="full",
    )
    assert inside_nodes.terms_bytes["optimizer_states"] == alone.terms_bytes["optimizer_states"]


def test_an_asynchronous_worker_has_no_optimizer_and_the_host_of_the_server_has() -> None:
    plain = {"engine": "async", "activation_checkpointing": "full", "data_parallel_replicate_degree": 4}
    worker = memory(SEVEN_BILLION, **plain)
    assert worker.terms_bytes["optimizer_states"] == 0
    # weights, Adam, and per worker the weights it read
    server = estimate(SEVEN_BILLION, Layout(**plain), device_kind="cuda", ranks_per_node=1).host_bytes_per_rank
    assert server > (4 + 8 + 4 * 4) * PARAMETERS
    assert worker.host_bytes_per_rank < server


def test_experts_are_divided_by_expert_parallelism() -> None:
    shape = known("mixtral-8x7b")
    whole = memory(shape, engine="megatron").terms_bytes["parameters"]
    divided = memory(shape, engine="megatron", expert_parallel_degree=8).terms_bytes["parameters"]
    experts = 2 * 32 * 8 * 3 * 4096 * 14336
    assert whole - divided == pytest.approx(experts * 7 / 8, rel=0.001)


def test_the_first_pipeline_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    plain = {"engine": "megatron", "pipeline_parallel_degree": 4, "activation_checkpointing": "selective"}
    few = memory(SEVEN_BILLION, **plain, gradient_accumulation_steps=2).terms_bytes["activations"]
    many = memory(SEVEN_BILLION, **plain, gradient_accumulation_steps=8).terms_bytes["activations"]
    more = memory(SEVEN_BILLION, **plain, gradient_accumulation_steps=64).terms_bytes["activations"]
    assert few < many == more


def test_with_uneven_stages_the_fullest_product_of_layers_and_waiting_micro_batches_counts() -> None:
    plain = {"engine": "megatron", "pipeline_parallel_degree": 4, "gradient_accumulation_steps": 64}
    layers = SEVEN_BILLION.num_layers  # 32
    assert layers == 32
    even = memory(SEVEN_BILLION, **plain).terms_bytes["activations"]
    uneven = memory(SEVEN_BILLION, **plain, stage_layers=(6, 9, 9, 8)).terms_bytes["activations"]
    # 1F1B keeps p - i micro-batches on stage i: 4 x 8 layers on the first of even stages; 4 x 6, 3 x 9, 2 x 9, 1 x 8
    assert uneven / even == pytest.approx(max(4 * 6, 3 * 9, 2 * 9, 1 * 8) / (4 * 8), rel=0.02)


def test_a_counted_module_keeps_what_was_counted() -> None:
    found = memory(MODULE, micro_batch_size=64, precision="fp32")
    assert found.terms_bytes["activations"] >= 64 * 90e6
    assert found.terms_bytes["parameters"] == 4 * 25_000_000


PUBLISHED = [
    # torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1: peak reserved GiB, Llama 3.1 8B, 8 and 128 H100
    ("llama-3.1-8b", {"engine": "fsdp2", "shard": 8, "micro": 2, "length": 8192, "keep": "selective"}, 77.0),
    ("llama-3.1-8b", {"engine": "fsdp2", "shard": 128, "micro": 2, "length": 8192, "keep": "selective"}, 62.0),
    ("llama-3.1-8b", {"engine": "fsdp2", "shard": 8, "micro": 1, "length": 32768, "keep": "full"}, 83.9),
]


@pytest.mark.parametrize(("name", "run", "gib"), PUBLISHED)
def test_published_peaks_are_met_from_above(name: str, run: dict[str, Any], gib: float) -> None:
    found = memory(
        known(name),
        engine=run["engine"],
        sharding="parameters",
        data_parallel_shard_degree=run["shard"],
        micro_batch_size=run["micro"],
        sequence_length=run["length"],
        activation_checkpointing=run["keep"],
        compiled=True,
    )
    reserved = found.peak_bytes.likely - found.terms_bytes["context"]
    # a peak stands at the upper end of what was seen (UNCOUNTED_FRACTION): hardly below, at most a sixth above
    assert 0.97 * gib * GIB <= reserved <= 7 / 6 * gib * GIB
    counted = reserved - found.terms_bytes["reserve"]
    assert counted <= gib * GIB


@pytest.mark.parametrize(("length", "gib"), [(512, 8.28), (2048, 9.16)])
def test_published_allocated_peaks_of_lora_are_met_within_four_percent(length: int, gib: float) -> None:
    # AnswerDotAI/fsdp_qlora, benchmarks_03_2024.md: Llama-2 7B, two 3090, rank 64, allocated beside reserved
    found = memory(
        known("llama-2-7b"),
        engine="fsdp2",
        sharding="parameters",
        data_parallel_shard_degree=2,
        precision="bf16_pure",
        method="lora",
        lora_rank=64,
        activation_checkpointing="full",
        sequence_length=length,
    )
    allocated = found.peak_bytes.likely - found.terms_bytes["context"] - found.terms_bytes["reserve"]
    assert allocated == pytest.approx(gib * GIB, rel=0.04)


def test_without_dropout_megatron_keeps_the_probabilities_once() -> None:
    # eager torch returns the input of dropout with p = 0: softmax's result alone is kept, 4 bytes in fp32; with it also
    # a mask of 1 byte and the masked copy (Korthikanti et al., arXiv:2205.05198, section 4.1, counts 5 in 16 bit)
    shape = known("gpt2-xl")
    layout = {"engine": "megatron", "precision": "fp32", "flash_attention": False, "sequence_length": 1024}
    kept = [memory(shape, **layout, dropout=on).terms_bytes["activations"] for on in (True, False)]
    scores, hidden = shape.num_layers * shape.num_attention_heads * 1024**2, shape.num_layers * 1024 * shape.hidden_size
    assert kept[0] - kept[1] == pytest.approx(5 * scores + 2 * hidden)


def test_a_rank_full_of_states_is_known_better_than_one_full_of_scores() -> None:
    shape = known("llama-3.1-8b")
    states = memory(shape, activation_checkpointing="full", sequence_length=128)
    scores = memory(shape, activation_checkpointing="full", sequence_length=8192, method="qlora", micro_batch_size=8)
    widths = [(m.peak_bytes.high - m.peak_bytes.low) / m.peak_bytes.likely for m in (states, scores)]
    assert widths[0] < 0.15 < widths[1]


def test_an_optimizer_step_larger_than_any_activation_stays_in_the_reserve() -> None:
    # ZeRO-1 of DeepSpeed copies its part of the gradients flat: 2 + 4 bytes each
    layout = {"engine": "deepspeed", "sharding": "optimizer", "data_parallel_shard_degree": 2, "precision": "fp16"}
    layout |= {"activation_checkpointing": "full", "sequence_length": 4096, "micro_batch_size": 8}
    found = memory(SEVEN_BILLION, **layout)
    step_copy, inputs = 6 * PARAMETERS / 2, 32 * 8 * 4096 * 4096 * 2  # of every layer, kept for checkpointing
    assert found.peak_bytes.likely > (4 + 12 / 2) * PARAMETERS + step_copy + inputs
    assert found.peak_bytes.low < found.peak_bytes.likely - min(step_copy, inputs)  # freed blocks may be used again


def test_the_same_question_has_the_same_answer() -> None:
    layout = Layout(engine="fsdp2", data_parallel_shard_degree=8, sharding="parameters")
    first = estimate(SEVEN_BILLION, layout, device_kind="cuda", ranks_per_node=8)
    assert estimate(SEVEN_BILLION, replace(layout), device_kind="cuda", ranks_per_node=8) == first


def test_a_cpu_process_is_larger_than_what_its_tensors_need() -> None:
    shape = shape_for_size(20e6)
    layout = {"engine": "ddp", "data_parallel_replicate_degree": 2, "precision": "fp32", "sequence_length": 128}
    found = memory(shape, "cpu", **layout)
    assert found.terms_bytes["context"] > 200 * 2**20
    assert found.terms_bytes["reserve"] > memory(shape, **layout).terms_bytes["reserve"]
