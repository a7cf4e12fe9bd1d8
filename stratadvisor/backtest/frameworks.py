"""What a run's framework says about it where the row itself is silent: a stated cell always goes first."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stratadvisor.backtest.rows import Row
from stratadvisor.catalog import devices as device_catalog

_OLD = frozenset({"pascal", "volta", "turing", ""})
_BEFORE_FUSED_ATTENTION = _OLD | {"ampere"}


@dataclass(frozen=True, slots=True)
class Framework:
    """Defaults of a training program."""

    name: str
    pattern: str
    """Tells it in the column ``framework``, else in ``source`` and ``src_key`` (lower case)."""
    cells: dict[str, str] = field(default_factory=dict)
    pure: bool = False
    """bf16 means weights, gradients and states as well."""


_FUSED = {"compiled": "yes"}
_MEGATRON = {"compiled": "yes", "engine": "megatron"}
_SAILOR_NEO = {"outputs": "1", "n_heads": "20", "n_kv_heads": "20"}
"""Its gpt_neo_model.py ends in a norm: nothing is projected. The stated 32 heads are those of its simulator's
configuration; its profile_all.py runs GPT-Neo 2.7B with the 20 of the published model, and a layer of that profile
takes what a layer of the runs does."""
FRAMEWORKS = (
    Framework("torchtitan", "torchtitan", _FUSED),
    Framework("megatron", r"2104\.04473|2205\.05198", _MEGATRON),  # the papers' own runs
    # PyTorch's own tensor and pipeline parallelism; examples/llm_finetune/*_peft_benchmark.yaml
    Framework("automodel", "automodel", {"engine": "ddp", "sequence_parallel": "no"}),
    Framework("jax", r"maxtext|paxml|jax|xla", _FUSED),
    # torch.compile according to its README; fms_fsdp/policies/mixed_precision.py: bfSixteen
    Framework("fms-fsdp", "fms-fsdp|foundation-model-stack", _FUSED | {"reduce": "bf16"}),
    Framework("tinyllama", "tinyllama", _FUSED),  # fused norm, rotary and SwiGLU kernels according to its README
    # profiling/configs/benchmark.yaml, and model.bfloat16() in profiling/benchmark.py
    Framework("vectorlm", "vectorlm", {"activation_ckpt": "full"}, pure=True),
    Framework("llm-foundry", "llm-foundry|llmfoundry", {"attention": "flash1"}),
    # doc/en/install.md: flash-attention 1.0.5 with its rotary kernel, apex with its fused RMSNorm. Its ZeRO optimizer
    # (internlm/solver/optimizer/hybrid_zero_optim.py) gives whole tensors to ranks, which broadcast them
    Framework("internlm", "internlm", {"attention": "flash1", "norms": "fused", "shards": "tensors"}),
    # finetune/lora.py: lora_r, chunked_cross_entropy; bitsandbytes 0.41 kept the inputs of frozen matrices
    Framework("litgpt", "litgpt", {"lora_rank": "8", "loss": "chunked", "frozen_inputs": "kept", "engine": "fsdp1"}),
    # train.py: --lora_rank; the models are those of transformers in early 2024
    Framework("fsdp_qlora", "fsdp.qlora", {"lora_rank": "64", "loss": "returned", "engine": "fsdp1"}, pure=True),
    Framework("torchtune", "torchtune"),
    # run_squad.py: two outputs per token, start and end of the answer
    Framework("deeplearning-examples", "lambdal|deeplearningexamples", {"attention": "plain", "outputs": "2"}),
    # its own OPT and GPT-Neo layers (third_party/Megatron-DeepSpeed/megatron/model) drop no attention probabilities and
    # fuse nothing: gelu, dropout and the residual sums are torch's own operations
    Framework(
        "megatron-deepspeed",
        "sailor",
        _MEGATRON | {"compiled": "no", "attention": "plain", "sequence_parallel": "no", "dropout": "no"},
    ),
    # Megatron-DeepSpeed: ZeRO-1 is DeepSpeed's; written before sequence parallelism and fused attention
    Framework(
        "megatron-deepspeed",
        "bigscience|vtrain|megatron-deepspeed",
        _MEGATRON | {"attention": "plain", "sequence_parallel": "no"},
    ),
    Framework("megatron", "megatron|nemo|korthikanti|narayanan|dgxc|calculon|mlperf", _MEGATRON),
)


def framework_of(row: Row) -> Framework:
    """Return the framework a row names, by its column or by the text of its source."""
    said = row.text("framework").lower()
    text = said or f"{row.text('source')} {row.text('src_key')}".lower()
    for framework in FRAMEWORKS:
        if re.search(framework.pattern, text):
            return framework
    return Framework(said or row.source, "")


def completed(row: Row) -> Row:
    """Return the row with the cells that its framework, its devices and its number format decide."""
    cells = dict(row.cells)
    for column, value in (framework_of(row).cells | _era(row)).items():
        cells[column] = row.text(column) or value
    if row.text("precision") == "bf16" and (framework_of(row).pure or "pure bf16" in row.text("note")):
        cells["precision"] = "bf16_pure"
    if framework_of(row).name == "torchtune" and "+" in row.text("note") and "+packed" not in row.text("note"):
        cells["compiled"] = row.text("compiled") or "yes"  # its techniques are cumulative; compile follows packing
        if "+compile" not in row.text("note"):
            cells["loss"] = row.text("loss") or "chunked"  # which follows compile
    if framework_of(row).name == "automodel" and row.text("strategy") == "single":
        # "TE + triton" in its table, which no longer has the runs with a pipeline
        cells["kernels"], cells["norms"] = row.text("kernels") or "transformer-engine", row.text("norms") or "fused"
    if framework_of(row).name == "automodel" and (row.count("pp") or 1) > 1:
        cells["activation_ckpt"] = row.text("activation_ckpt") or "full"  # as its recipes with a pipeline say
    if row.source == "sailor-gh200" and "neo" in row.text("model_name").lower():
        cells |= _SAILOR_NEO
    if framework_of(row).name == "torchtitan":
        _split_for_pipeline(row, cells)
    if row.source == "bigscience-a100" and row.text("precision") == "bf16":
        _as_chronicled(row, cells)
    if row.text("compiled") == "" and "eager" in row.text("note"):
        cells["compiled"] = "no"
    if row.text("precision") == "fp32" and _megatron_style(row) and _architecture(row) not in _OLD:
        cells["precision"] = "tf32"  # the containers that such runs use switch it on for products
    return Row(row.line, cells)


def _split_for_pipeline(row: Row, cells: dict[str, str]) -> None:
    """Divide a local batch into the micro-batches of a pipeline: one for each of its ranks, torchtitan's default."""
    stages, batch = row.count("pp") or 1, row.count("micro_batch")
    if stages > 1 and batch is not None and batch % stages == 0 and row.count("grad_accum") is None:
        cells["micro_batch"] = str(batch // stages)
    if stages > 1 and row.text("vpp") == "" and "interleaved" in row.text("note"):
        cells["vpp"] = "2"  # two stages on each rank


def _as_chronicled(row: Row, cells: dict[str, str]) -> None:
    """Add what chronicles-prequel.md of BigScience says of its bf16 runs of February 2022.

    Until the 28th they had the optimizer of fp16 runs, with 16-bit gradient sums; from that day on fp32 sums, and the
    embedding and the output projection count as layers when stages are cut ("Rebalancing layers").
    """
    day = re.search(r"\b02-(\d\d)\b", row.text("note"))
    if day is None:
        return
    if int(day[1]) < 28:
        cells["precision"] = "fp16"
        return
    stages, layers = row.count("pp") or 1, row.count("n_layers") or 0
    if stages > 2 and layers and (layers + 2) % stages == 0 and row.text("stage_layers") == "":
        inner = (layers + 2) // stages
        cells["stage_layers"] = " ".join(map(str, [inner - 1, *[inner] * (stages - 2), inner - 1]))


def _megatron_style(row: Row) -> bool:
    return row.text("strategy") in ("tp-pp-dp", "tp-pp-zero1")


def _architecture(row: Row) -> str:
    plain = re.sub(r"-[0-9]{2,4}W$|-HBM2e$", "", row.text("gpu_model"))
    spec = device_catalog.lookup({"A100": "A100-40GB-SXM"}.get(plain, plain))
    return "" if spec is None else spec.architecture


def _era(row: Row) -> dict[str, str]:
    """Return what the time of a run decides: Megatron's GPT runs before Hopper had no fused attention.

    Sequence parallelism came to Megatron in May 2022 (arXiv:2205.05198), fused attention in 2023.
    """
    name = row.text("model_name").lower()
    old_model = name.startswith(("gpt", "bert", "opt", "bloom", "mt-nlg"))
    if not (_megatron_style(row) and old_model and _architecture(row) in _BEFORE_FUSED_ATTENTION):
        return {}
    newer = "2205.05198" in row.text("source") and "no sequence parallelism" not in row.text("note")
    return {"attention": "plain", "compiled": "yes", "sequence_parallel": "yes" if newer else "no"}
