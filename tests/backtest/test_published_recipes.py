"""What rows leave unsaid and recipes, racks and number formats tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratadvisor.backtest.express import Expressed, express
from stratadvisor.backtest.rows import Row

LLAMA_8B = {
    "model_name": "Llama-3-8B",
    "n_layers": "32",
    "hidden": "4096",
    "n_heads": "32",
    "n_kv_heads": "8",
    "ffn_hidden": "14336",
    "vocab": "128256",
    "seq_len": "8192",
    "gpu_model": "H100-80GB-SXM",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "precision": "fp8",
    "strategy": "tp-pp-dp",
    "micro_batch": "1",
    "global_batch_sequences": "64",
    "src_key": "nemo",
}


def run(**change: str) -> Expressed:
    found = express(Row(2, LLAMA_8B | change))
    assert isinstance(found, Expressed), found
    return found


@pytest.mark.parametrize(
    ("change", "scaling"),
    [
        ({}, "delayed"),
        ({"note": "per-tensor current-scaling FP8"}, "tensor"),
        ({"precision": "fp8-cs"}, "tensor"),
        ({"precision": "mxfp8", "gpu_model": "B200-180GB"}, "block"),
        ({"strategy": "fsdp", "src_key": "torchtitan"}, "tensor"),
        ({"precision": "bf16"}, "none"),
    ],
)
def test_a_format_and_a_framework_tell_how_operands_are_scaled(change: dict[str, str], scaling: str) -> None:
    layout = run(**change).layout
    assert layout.fp8_scaling == scaling
    assert layout.precision == "bf16"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu_model": "A100-80GB-SXM"}, "A100-80GB-SXM has no fp8 matrix units"),
        ({"precision": "mxfp8"}, "the matrix units of H100-80GB-SXM take no block scales (MXFP8)"),
        ({"precision": "nvfp4"}, "precision nvfp4 is not modelled"),
    ],
)
def test_what_the_device_cannot_multiply_is_not_predicted(change: dict[str, str], reason: str) -> None:
    assert express(Row(2, LLAMA_8B | change)) == reason


def test_megatrons_own_fsdp_has_its_layers() -> None:
    assert run(strategy="fsdp").layout.engine == "megatron"
    assert run(strategy="fsdp").layout.sharding == "parameters"
    assert run(strategy="fsdp", src_key="torchtitan").layout.engine == "fsdp2"


def test_torchtitan_cuts_a_local_batch_into_a_micro_batch_for_each_stage() -> None:
    titan = {"src_key": "torchtitan", "strategy": "tp-pp-fsdp", "n_gpus": "32", "pp": "4", "micro_batch": "8"}
    layout = run(**titan).layout
    assert (layout.micro_batch_size, layout.gradient_accumulation_steps) == (2, 4)
    assert layout.virtual_pipeline_chunks == 1
    assert run(**titan, note="3D interleaved 1F1B").layout.virtual_pipeline_chunks == 2
    stated = run(**titan | {"micro_batch": "2"}, grad_accum="4").layout
    assert stated.micro_batch_size == 2


def test_a_rack_of_72_is_one_domain_of_nvlink() -> None:
    rack = run(gpu_model="GB200-186GB", gpus_per_node="4", n_gpus="64").cluster.classes[0]
    assert (rack.num_nodes, rack.devices_per_node) == (1, 64)
    two = run(gpu_model="GB200-186GB", gpus_per_node="4", n_gpus="128", global_batch_sequences="128").cluster
    assert (two.classes[0].num_nodes, two.classes[0].devices_per_node) == (2, 64)
    boxes = run(gpu_model="B200-180GB", n_gpus="16").cluster.classes[0]
    assert (boxes.num_nodes, boxes.devices_per_node) == (2, 8)


def test_recipes_tell_what_their_table_leaves_out() -> None:
    pipelined = run(src_key="automodel-lora", method="lora", precision="bf16", pp="4").layout
    assert (pipelined.engine, pipelined.activation_checkpointing) == ("ddp", "full")
    assert not pipelined.sequence_parallel
    assert run(src_key="automodel-lora", precision="bf16").layout.activation_checkpointing == "none"
    old = run(src_key="internlm-tgs", strategy="zero1", precision="bf16", gpu_model="A100-80GB-SXM").layout
    assert (old.flash_generation, old.python_norms) == (1, False)
    assert run(src_key="llmfoundry", strategy="fsdp", precision="bf16").layout.flash_generation == 1
    newer = run(src_key="vectorlm", strategy="fsdp", precision="bf16").layout
    assert replace(newer, flash_generation=2, python_norms=True) == newer
    assert newer.precision == "bf16_pure"
    assert run(src_key="fms-fsdp", strategy="fsdp", precision="bf16").compression == "bf16"
    assert run(src_key="torchtitan", strategy="fsdp", precision="bf16").compression == "none"
    alone = run(src_key="automodel-lora", method="lora", precision="bf16", strategy="single", n_gpus="1").layout
    assert (alone.tuned_kernels, alone.python_norms) == (True, False)
    assert not pipelined.tuned_kernels


def test_a_local_batch_drains_a_pipeline() -> None:
    row = {"src_key": "automodel-lora", "method": "lora", "precision": "bf16", "micro_batch": "1"}
    assert run(**row, pp="4", note="local batch 4").layout.pipeline_micro_batches == 4
    assert run(**row, pp="4").layout.pipeline_micro_batches == 0
    assert run(**row, note="local batch 4").layout.pipeline_micro_batches == 0


def test_sailors_gpt_neo_is_the_program_that_ran() -> None:
    neo = {"src_key": "sailor-gh200", "precision": "fp32", "model_name": "GPT-Neo-2.7B", "gpu_model": "GH200-96GB"}
    sizes = {"hidden": "2560", "n_layers": "32", "n_heads": "32", "n_kv_heads": "32", "ffn_hidden": "10240"}
    shape = run(**neo | sizes, n_params="", vocab="").shape
    assert (shape.num_attention_heads, shape.head_dim, shape.num_outputs) == (20, 128, 1)
