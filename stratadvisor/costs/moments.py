"""What comes and goes in a step, at each moment that can be the peak."""

from __future__ import annotations

from stratadvisor.costs.activations import layer_bytes, micro_batches_in_flight
from stratadvisor.costs.adapters import frozen_head_bytes, unpacked_bytes
from stratadvisor.costs.buffers import bucket_bytes, gathered_bytes, units_stay_whole
from stratadvisor.costs.held import Held
from stratadvisor.costs.logits import RETURNED_BYTES, score_bytes
from stratadvisor.costs.parameters import ParameterCounts, RankParameters
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

AUTOCAST_MODULE_SHARE = 0.6
"""Of a counted module's saved fp32 bytes under autocast: products in 16 bit, norms in fp32 (estimated)."""
MODULE_TRANSIENT_SHARE = 0.05
"""Gradients of activations beside them, for a module whose layers are not known (estimated)."""

Alive = tuple[float, float, float, float, float]
"""Bytes of gradients, activations, logits, gathered units, buffers."""


def moments(
    shape: ModelShape,
    layout: Layout,
    counts: ParameterCounts,
    kinds: Recipe,
    local: RankParameters,
    states: Held,
    stage: int,
) -> dict[str, Alive]:
    """Return what is alive at each moment beside the states, keyed by phase (and part of it)."""
    tokens = layout.micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    kept, working = _activations(shape, layout, kinds, tokens)
    if shape.is_transformer:
        held = micro_batches_in_flight(layout, stage)
        outputs = tokens * shape.hidden_size * kinds.residual if held > 1 else 0.0  # each waits for its gradient
        kept = held * (local.layers * kept + outputs)
    gradients = states.gradients
    if units_stay_whole(layout) and layout.method == "full":
        gradients = kinds.gradient * local.total  # divided only when the last micro-batch has run backward
    before = gradients if _keeps_gradients(layout) else 0.0
    ahead = gathered_bytes(local, layout, kinds, "forward")
    start = gathered_bytes(local, layout, kinds, "start")
    fixed = unpacked_bytes(counts, layout, kinds) + frozen_head_bytes(local, layout, kinds)
    buckets = bucket_bytes(local, layout, kinds)
    head = local.head if layout.method == "full" else 0.0
    head_gradient = (kinds.gradient + (kinds.compute if kinds.autocast else 0)) * head
    found: dict[str, Alive] = {}
    returned = 0.0  # alive to the end of the step
    if stage == layout.pipeline_parallel_degree - 1 and shape.is_transformer:
        forward_scores, backward_scores = score_bytes(shape, layout, kinds, tokens)
        at_loss = start if kinds.autocast else ahead
        found["loss forward"] = (before, kept, forward_scores, ahead + fixed, 0.0)
        found["loss backward"] = (before, kept, backward_scores, at_loss + fixed, 0.0)
        scores = tokens * shape.num_outputs / layout.tensor_parallel_degree
        returned = RETURNED_BYTES * scores if layout.loss == "returned" else 0.0
        of_scores = kinds.compute * scores + returned
        found["backward head"] = (before + head_gradient, kept, of_scores, at_loss + fixed, 0.0)
    early = before if before else kinds.gradient * head if layout.engine != "fsdp2" else kinds.compute * head
    one_gradient = 0.0 if before else gradients * local.one_layer / max(1.0, local.total)
    found["backward start"] = (early, kept + working, returned, start + fixed, buckets)
    end = gathered_bytes(local, layout, kinds, "end")
    if local.layers > 1:
        # one layer further, its gradients are on their way
        others = kept * (1 - 1 / local.layers) + working
        found["backward next"] = (early + one_gradient, others, returned, end + fixed, buckets)
    # while the first layer runs backward its own gradients and the embedding's are still to come
    rest = local.one_layer + local.root - local.head
    share = 1.0 if before or not local.total else max(0.0, 1 - rest / local.total)
    last_layer = working + kept / max(1.0, local.layers)
    found["backward end"] = (share * gradients, last_layer, returned, end + fixed, buckets)
    done = gathered_bytes(local, layout, kinds, "done")
    found["backward done"] = (states.gradients, 0.0, returned, done + fixed, buckets)
    if layout.engine == "local":
        kept_gradients = states.gradients if layout.data_parallel_shard_degree > 1 else 0.0
        found["optimizer exchange"] = (kept_gradients, 0.0, 0.0, 0.0, states.step_copy)
        found["optimizer"] = (states.gradients, 0.0, 0.0, 0.0, 0.0)
    else:
        found["optimizer"] = (states.gradients, 0.0, returned, 0.0, states.step_copy)
    return found


def kept_activation_bytes(shape: ModelShape, layout: Layout, kinds: Recipe, local: RankParameters, stage: int) -> float:
    """Return what a stage's activations take between forward and backward, of all micro-batches in flight.

    0 where there is one at a time, or checkpointing takes nothing away.
    """
    held, layer = micro_batches_in_flight(layout, stage), layer_bytes(shape, layout, kinds)
    if held <= 1 or not layer.recomputed:
        return 0.0
    tokens = layout.micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    return held * local.layers * tokens * layer.kept


def whole_activation_bytes(
    shape: ModelShape, layout: Layout, kinds: Recipe, local: RankParameters, stage: int
) -> float:
    """Return what a stage's activations would take at the start of backward without checkpointing."""
    tokens = layout.micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    layer = layer_bytes(shape, layout, kinds)
    held = micro_batches_in_flight(layout, stage)
    outputs = tokens * shape.hidden_size * kinds.residual if held > 1 else 0.0
    return held * (local.layers * tokens * layer.full + outputs) + tokens * layer.transient


def _keeps_gradients(layout: Layout) -> bool:
    """Whether gradients exist while a micro-batch runs forward: accumulation, or a buffer that is never freed."""
    persistent = layout.engine in ("ddp", "megatron")
    if layout.engine == "deepspeed":
        persistent = layout.sharding == "parameters"
    elif layout.engine == "local":
        persistent = layout.data_parallel_shard_degree > 1  # DDP inside the group
    return persistent or layout.gradient_accumulation_steps > 1


def _activations(shape: ModelShape, layout: Layout, kinds: Recipe, tokens: float) -> tuple[float, float]:
    """Return (bytes kept per layer from forward to backward, bytes that the running layer needs beside them).

    Of a counted module: of all of it.
    """
    if not shape.is_transformer:
        saved = (shape.saved_bytes_per_item or 0.0) * layout.micro_batch_size
        saved *= AUTOCAST_MODULE_SHARE if kinds.autocast else kinds.compute / 4
        return saved, MODULE_TRANSIENT_SHARE * saved
    layer = layer_bytes(shape, layout, kinds)
    return tokens * layer.kept, tokens * (layer.recomputed + layer.transient)
