"""The layout of a run: degrees, sharding, precision, batch, from the cells of its row."""

from __future__ import annotations

import re
from dataclasses import replace

from stratadvisor.backtest.rows import Row
from stratadvisor.schema.layout import Engine, Fp8Scaling, Layout, Loss, MixedPrecision, Sharding
from stratadvisor.schema.workload import Method

_ENGINES: dict[str, tuple[Engine, Sharding]] = {
    "single": ("torch", "none"),
    "ddp": ("ddp", "none"),
    "zero1": ("deepspeed", "optimizer"),
    "zero2": ("deepspeed", "gradients"),
    "zero3": ("deepspeed", "parameters"),
    "zero1-hybrid": ("deepspeed", "optimizer"),
    "fsdp": ("fsdp2", "parameters"),
    "hsdp": ("fsdp2", "parameters"),
    "tp-fsdp": ("fsdp2", "parameters"),
    "tp-pp-fsdp": ("fsdp2", "parameters"),
    "tp-pp-dp": ("megatron", "none"),
    "tp-pp-zero1": ("megatron", "optimizer"),
}
_PRECISIONS: dict[str, MixedPrecision] = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16_pure": "bf16_pure",
    "bf16-true": "bf16_pure",
    "fp16/bf16 (not restated)": "fp16",
    "fp8": "bf16",
    "fp8-cs": "bf16",
    "mxfp8": "bf16",
    "fp8-mx": "bf16",
}
_METHODS: dict[str, Method] = {
    "lora": "lora",
    "qlora": "qlora",
    "pretrain": "full",
    "full": "full",
    "sft": "full",
    "": "full",
}


_FP8: dict[str, Fp8Scaling] = {"fp8": "delayed", "fp8-cs": "tensor", "mxfp8": "block", "fp8-mx": "block"}


class NotExpressibleError(Exception):
    """The reason, for the report."""


def check_lengths(row: Row) -> None:
    """Raise NotExpressibleError where the sequences' real lengths are unknown."""
    if re.search(r"\bunpacked\b", row.text("note")):
        raise NotExpressibleError("sequences are padded by an amount that is not stated")
    if row.count("seq_len") is None:
        raise NotExpressibleError("the length of the sequences is not stated")


def precision_of(row: Row) -> MixedPrecision:
    """Return the number format, or raise NotExpressibleError."""
    precision = _PRECISIONS.get(row.text("precision"))
    if precision is None:
        raise NotExpressibleError(f"precision {row.text('precision') or 'not stated'} is not modelled")
    return precision


def fp8_scaling_of(row: Row, engine: Engine) -> Fp8Scaling:
    """Return how the linear layers are scaled to fp8: PyTorch's own by each tensor, Megatron's of old by its past."""
    scaling = _FP8.get(row.text("precision"), "none")
    own = engine != "megatron" or "current-scaling" in row.text("note")
    return "tensor" if scaling == "delayed" and own else scaling


def strategy_known(row: Row) -> None:
    """Raise NotExpressibleError for a strategy that has no layout."""
    if row.text("strategy") not in _ENGINES:
        raise NotExpressibleError(f"strategy {row.text('strategy') or 'not stated'} is not modelled")


def layout_of(row: Row, precision: MixedPrecision, devices: int, per_node: int) -> Layout:
    """Return the layout, or raise NotExpressibleError; contradictions of the row raise ValueError."""
    strategy = row.text("strategy")
    engine, sharding = _ENGINES[strategy]
    if engine == "megatron" and row.text("engine") == "ddp":  # PyTorch's own tensor and pipeline parallelism
        engine = "ddp" if sharding == "none" else "fsdp2"
    elif row.text("engine") == "megatron" and engine == "fsdp2":  # Megatron's own, with its layers
        engine = "megatron"
    tensor, stages = row.count("tp") or 1, row.count("pp") or 1
    context, experts = row.count("cp") or 1, row.count("ep") or 1
    data, odd = divmod(devices, tensor * stages * context)
    if odd:
        raise NotExpressibleError("tensor x pipeline x context does not divide the number of devices")
    if stages > (row.count("n_layers") or stages):
        raise NotExpressibleError("more pipeline stages than layers")
    micro, accumulation = _batch(row, data)
    replicate, shard = (data, 1) if sharding == "none" else (1, data)
    if strategy in ("hsdp", "zero1-hybrid") and data % per_node == 0:
        replicate, shard = data // per_node, per_node
    checkpointing = row.text("activation_ckpt") or "none"
    if checkpointing not in ("none", "selective", "full"):
        raise NotExpressibleError(f"activation checkpointing {checkpointing!r} is not modelled")
    method = _METHODS.get(row.text("method"))
    if method is None:
        raise NotExpressibleError(f"method {row.text('method')!r} is not modelled")
    layout = Layout(
        engine=engine,
        data_parallel_replicate_degree=replicate,
        data_parallel_shard_degree=shard,
        tensor_parallel_degree=tensor,
        pipeline_parallel_degree=stages,
        virtual_pipeline_chunks=row.count("vpp") or 1,
        stage_layers=_stage_layers(row, stages),
        context_parallel_degree=context,
        expert_parallel_degree=experts,
        sharding=sharding,
        whole_tensor_shards=row.text("shards") == "tensors",
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        sequence_length=row.count("seq_len") or 1,
        precision=precision,
        fp8_scaling=fp8_scaling_of(row, engine),
        activation_checkpointing=checkpointing,  # type: ignore[arg-type]  # checked above
        method=method,
        lora_rank=row.count("lora_rank") or 16,
        double_quantized=not re.search(r"\bnf4\b(?!-dq)", row.text("note")),
        frozen_inputs_kept=row.text("frozen_inputs") == "kept",
        loss=_loss(row),
        flat_units=row.text("engine") == "fsdp1",
        sequence_parallel=row.text("sequence_parallel") != "no",
        flash_attention=row.text("attention") != "plain",
        flash_generation=1 if row.text("attention") == "flash1" else 2,
        compiled=row.text("compiled") == "yes",
        python_norms=row.text("norms") != "fused",
        tuned_kernels=row.text("kernels") == "transformer-engine",
        pipeline_micro_batches=_drained_after(row, stages, micro),
        dropout=row.text("dropout") != "no",
    )
    return _offloaded(row, layout)


def _loss(row: Row) -> Loss:
    said = row.text("loss") or "whole"
    if said not in ("whole", "chunked", "returned"):
        raise NotExpressibleError(f"a loss {said!r} is not modelled")
    return said  # type: ignore[return-value]  # checked above


def _drained_after(row: Row, stages: int, micro: int) -> int:
    """Return the micro-batches of a local batch, after which torch's schedules drain: ``local batch 4`` in the note."""
    said = re.search(r"local batch (\d+)", row.text("note"))
    return max(1, int(said[1]) // micro) if said and stages > 1 else 0


def _stage_layers(row: Row, stages: int) -> tuple[int, ...]:
    """Return the layers of each stage where a row tells them and they are uneven.

    The column ``stage_layers`` holds one number for each stage; a note may say "layers per stage [5, 7, 7, 7]", which
    counts the embedding as a layer of the first and the output projection as one of the last stage.
    """
    said, layers = row.text("stage_layers"), row.count("n_layers")
    found = [int(number) for number in re.findall(r"\d+", said)]
    noted = re.search(r"layers per stage \[([\d, ]+)\]", row.text("note"))
    if not found and noted:
        found = [int(number) for number in noted[1].split(",")]
        if layers is not None and sum(found) == layers + 2:
            found[0], found[-1] = found[0] - 1, found[-1] - 1
    if stages == 1 or not found or len(set(found)) == 1:
        return ()
    if len(found) != stages or (layers is not None and sum(found) != layers):
        raise ValueError(f"{len(found)} stages of {sum(found)} layers are told, {stages} of {layers} stated")
    return tuple(found)


def _offloaded(row: Row, layout: Layout) -> Layout:
    offload = row.text("offload")
    if offload in ("", "none"):
        return layout
    if offload == "params-cpu":
        return replace(layout, parameter_offload="cpu")
    if offload == "optimizer-cpu":
        return replace(layout, optimizer_offload="cpu")
    if offload == "optimizer+params-cpu":
        return replace(layout, optimizer_offload="cpu", parameter_offload="cpu")
    raise NotExpressibleError(f"offload {offload!r} is not modelled")


def _batch(row: Row, data: int) -> tuple[int, int]:
    micro = row.count("micro_batch")
    whole = row.count("global_batch_sequences")
    accumulation = row.count("grad_accum")
    if micro is None and whole is not None and accumulation is not None:
        micro = max(1, round(whole / (data * accumulation)))
    if micro is None:
        raise NotExpressibleError("the micro-batch is not stated")
    if whole is not None:
        steps = whole / (micro * data)
        if abs(steps - round(steps)) > 1e-6 or steps < 1:
            raise NotExpressibleError("micro-batch x data-parallel ranks does not divide the global batch")
        return micro, round(steps)
    return micro, accumulation or 1
