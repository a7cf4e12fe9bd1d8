"""Parameters that a rank holds, trains and sends."""

from __future__ import annotations

from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


def adapter_parameters(shape: ModelShape, rank: int) -> float:
    """Return the parameters of adapters of ``rank`` on every matrix of every layer (LoRA, arXiv:2106.09685)."""
    if not shape.is_transformer:
        return 0.01 * shape.num_parameters
    hidden = shape.hidden_size
    queries, keys = shape.attention_width, shape.key_value_width
    attention = (hidden + queries) * 2 + (hidden + keys) * 2
    up = 2 if shape.gated_mlp else 1
    sparse = (up + 1) * (hidden + shape.ffn_hidden_size) * max(1, shape.num_experts + shape.num_shared_experts)
    dense = (up + 1) * (hidden + (shape.dense_ffn_hidden_size or shape.ffn_hidden_size))
    layers = shape.num_layers - shape.num_dense_layers
    return float(rank * (shape.num_layers * attention + layers * sparse + shape.num_dense_layers * dense))


def model_part(shape: ModelShape, layout: Layout) -> float:
    """Return the parameters of one tensor- and pipeline-parallel part, before data-parallel sharding."""
    divided = layout.tensor_parallel_degree * layout.pipeline_parallel_degree
    whole = shape.num_parameters + shape.num_vision_parameters
    if layout.expert_parallel_degree > 1 and shape.num_experts > 0:
        idle = max(0, shape.num_parameters - shape.num_active_parameters)
        # of E experts a token passes through k: those it does not are (E - k) / E of all
        experts = idle * shape.num_experts / max(1, shape.num_experts - shape.num_experts_per_token)
        return (whole - experts + experts / layout.expert_parallel_degree) / divided
    return whole / divided


def trainable_parameters(shape: ModelShape, layout: Layout) -> float:
    """Return the trained parameters of one tensor- and pipeline-parallel part."""
    if layout.method == "full":
        return model_part(shape, layout)
    divided = layout.tensor_parallel_degree * layout.pipeline_parallel_degree
    return adapter_parameters(shape, layout.lora_rank) / divided


def gradient_bytes(layout: Layout, compression: str) -> float:
    """Return the bytes of a gradient element on the wire.

    DDP under autocast and FSDP2 with fp32 reduction send fp32; DeepSpeed sends the model's 16 bits; Megatron reduces
    its fp32 main gradients.
    """
    if compression in ("bf16", "fp16"):
        return 2.0
    if layout.precision == "bf16_pure":
        return 2.0
    if layout.engine == "deepspeed" and layout.precision != "fp32":
        return 2.0
    return 4.0
