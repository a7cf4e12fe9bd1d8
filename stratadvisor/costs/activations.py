"""What autograd keeps of one layer per token, operation by operation.

Counted from the graph that eager PyTorch builds for the runtime's own transformer (``runtime/model.py``), and from
Korthikanti et al. (arXiv:2205.05198, section 4) for Megatron-LM. Tests hold it against torch's own tracker.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes per token of the micro-batch on this rank."""

    full: float
    """Everything backward needs of one layer."""
    kept: float
    """What stays from forward to backward under the chosen checkpointing."""
    transient: float
    """Gradients of activations alive beside ``full`` while the layer runs backward."""

    @property
    def recomputed(self) -> float:
        """What comes back for the one layer that runs backward."""
        return max(0.0, self.full - self.kept)


def in_megatron(layout: Layout) -> bool:
    """Whether the layers are Megatron-LM's: its engine, or DeepSpeed around a divided model."""
    parallel = layout.tensor_parallel_degree > 1 or layout.pipeline_parallel_degree > 1
    return layout.engine == "megatron" or (layout.engine == "deepspeed" and parallel)


def norm_extra_bytes(shape: ModelShape, layout: Layout, recipe: Recipe) -> float:
    """Return per token what an RMSNorm keeps beside its input and output.

    Without a fused kernel torch keeps the normalised value in fp32 and, in 16 bit, an fp32 input in place of the
    16-bit one. LayerNorm is fused everywhere; RMSNorm when compiled, in Megatron-LM, and on GPUs since torch 2.9 when
    the model uses torch's own. That last case is not assumed: many models bring their own norm. The normalised value
    is for the gradient of the norm's weight: beside adapters, which leave it frozen, it is not kept.
    """
    if layout.compiled or shape.norm_bias or in_megatron(layout):
        return 0.0
    return shape.hidden_size * ((4 if layout.method == "full" else 0) + max(0, 4 - recipe.residual))


def layer_bytes(shape: ModelShape, layout: Layout, recipe: Recipe) -> LayerBytes:
    """Return the bytes per token of an average layer."""
    if in_megatron(layout):
        return _megatron(shape, layout, recipe)
    tensor = layout.tensor_parallel_degree
    shared = tensor if layout.sequence_parallel else 1
    e, r = recipe.compute, recipe.residual
    hidden, queries = shape.hidden_size / shared, shape.attention_width / tensor
    copies = 3 if recipe.autocast else 1  # autocast casts the fp32 norm output once per product
    attention = r * hidden + copies * e * hidden + 4 * e * queries + 4 * shape.num_attention_heads / tensor
    if not shape.learned_positions:
        # cosines and sines, once per layer; turning the queries makes attention's output need a copy
        attention += 8 * shape.head_dim / layout.micro_batch_size + e * queries
    if not layout.flash_attention:
        attention += e * shape.num_attention_heads / tensor * layout.sequence_length
    mlp, mlp_kept, mlp_transient = _mlp(shape, layout, recipe)
    full = attention + r * hidden + mlp + 2 * norm_extra_bytes(shape, layout, recipe) / shared
    transient = mlp_transient + r * hidden
    if layout.method != "full":
        full += 7 * layout.lora_rank * e
    if layout.method == "qlora" and layout.frozen_inputs_kept:
        full += e * (
            2 * hidden + _down_width(shape, layout)
        )  # a copy each of what attention and MLP get, and of down's
    kept = full
    if layout.activation_checkpointing == "full":
        kept = r * hidden
    elif layout.activation_checkpointing == "selective":
        keys = shape.key_value_width / tensor
        lse = 4 * shape.num_attention_heads / tensor
        kept = min(full, r * hidden + e * (2 * queries + keys) + lse + mlp_kept)
    return LayerBytes(full=full, kept=kept, transient=transient)


def _down_width(shape: ModelShape, layout: Layout) -> float:
    """Return the width of what the last matrix of an MLP reads."""
    routed = shape.num_experts_per_token + shape.num_shared_experts if shape.num_experts else 1
    return routed * shape.ffn_hidden_size / layout.tensor_parallel_degree


def _mlp(shape: ModelShape, layout: Layout, recipe: Recipe) -> tuple[float, float, float]:
    """Return (all, kept under selective checkpointing, transient) of the MLP, averaged over kinds of layer."""
    tensor = layout.tensor_parallel_degree
    hidden = shape.hidden_size / (tensor if layout.sequence_parallel else 1)
    if not shape.num_experts:
        return _dense_mlp(hidden, shape.ffn_hidden_size / tensor, shape, layout, recipe)
    share = shape.num_dense_layers / shape.num_layers
    dense = _dense_mlp(hidden, shape.dense_ffn_hidden_size / tensor, shape, layout, recipe) if share else (0.0,) * 3
    routed = shape.num_experts_per_token
    width = (routed + shape.num_shared_experts) * shape.ffn_hidden_size / tensor
    inner, inner_kept, transient = _dense_mlp(routed * hidden, width, shape, layout, recipe)
    e = recipe.compute
    # router input and scores; each expert's output, which the weighting of the sum needs
    mixture = inner + e * hidden + 8 * shape.num_experts + routed * (e * hidden + 12)
    kinds = ((dense, share), ((mixture, inner_kept + 4 * shape.num_experts, transient), 1 - share))
    total, kept = (sum(kind[i] * part for kind, part in kinds) for i in (0, 1))
    return total, kept, max(dense[2], transient)


def _dense_mlp(
    hidden: float, width: float, shape: ModelShape, layout: Layout, recipe: Recipe
) -> tuple[float, float, float]:
    """Return (all, kept under selective checkpointing, transient) of an MLP; selective keeps every second product."""
    e = recipe.compute
    if shape.gated_mlp:
        copies = 2 if recipe.autocast else 1
        # gate, its activation, up, product; compiled code computes the activation again
        inner = (3 if layout.compiled else 4) * e * width
        return copies * e * hidden + inner, e * (width + hidden), 2 * e * width
    return e * hidden + 2 * e * width, e * width, e * width


def _megatron(shape: ModelShape, layout: Layout, recipe: Recipe) -> LayerBytes:
    """Return Megatron-LM's: fused SwiGLU, unrepeated keys and values, dropout masks in models without a gated MLP."""
    tensor = layout.tensor_parallel_degree
    shared = tensor if layout.sequence_parallel else 1
    e = recipe.compute
    hidden = shape.hidden_size / shared
    queries, keys = shape.attention_width / tensor, shape.key_value_width / tensor
    dropout = 1 if layout.dropout and not shape.gated_mlp else 0
    attention = 2 * e * hidden + e * (2 * queries + 2 * keys) + dropout * hidden
    scores = 0.0
    if not layout.flash_attention:
        scores = (e + dropout * (e + 1)) * shape.num_attention_heads / tensor * layout.sequence_length
    routed = shape.num_experts_per_token if shape.num_experts else 1
    width = (routed + shape.num_shared_experts) * shape.ffn_hidden_size / tensor
    if shape.num_experts and shape.num_dense_layers:
        part = shape.num_dense_layers / shape.num_layers
        width = part * shape.dense_ffn_hidden_size / tensor + (1 - part) * width
    mlp = e * hidden + routed * e * hidden + (3 if shape.gated_mlp else 2) * e * width + dropout * hidden
    if shape.num_experts:
        mlp += routed * e * hidden + 8 * shape.num_experts
    full = attention + scores + mlp
    kept = {"none": full, "selective": attention + mlp, "full": e * hidden}[layout.activation_checkpointing]
    return LayerBytes(full=full, kept=kept, transient=(2 if shape.gated_mlp else 1) * e * width)


def micro_batches_in_flight(layout: Layout, stage: int) -> float:
    """Return how many micro-batches a stage holds: min(m, p - i) in 1F1B, more when interleaved.

    Narayanan et al., arXiv:2104.04473, section 2.2; the interleaved factor as in Megatron-LM's memory report.
    """
    stages = layout.pipeline_parallel_degree
    if stages == 1:
        return 1.0
    held = float(min(layout.gradient_accumulation_steps, stages - stage))
    if layout.virtual_pipeline_chunks > 1 and layout.gradient_accumulation_steps >= stages:
        interleaved = (stages - stage) * (1 + (stages - 1) / (stages * layout.virtual_pipeline_chunks))
        held = min(float(layout.gradient_accumulation_steps), interleaved)
    return held
