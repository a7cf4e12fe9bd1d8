"""Everything beside states, activations and logits: gathered units, communication buckets, context."""

from __future__ import annotations

from typing import Literal

from stratadvisor.costs.activations import in_megatron
from stratadvisor.costs.parameters import RankParameters
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.profile import DeviceKind
from stratadvisor.units import GIB, MIB

Moment = Literal["forward", "start", "end", "done"]
"""End of forward; backward at its first layer, at its last, and after it."""
FORWARD_MOMENTS: tuple[Moment, ...] = ("forward", "start")
"""Those at which units are gathered and no gradients are reduced."""
CUDA_CONTEXT_BYTES = 0.6 * GIB
"""Driver context, kernels and cuBLAS workspace of one process: 0.4 to 0.8 GiB on recent cards."""
NCCL_BYTES = 0.5 * GIB
"""Channels of NCCL for the communicators of one data-parallel group; a second share for every further kind of group."""
MEGATRON_BYTES = 3.0 * GIB
"""Megatron-LM's many process groups, point-to-point staging and fused kernels (fit on nvidia-smi readings)."""
CPU_PROCESS_BYTES = 320 * MIB
"""Resident size of a Python process with torch, gloo and one DDP step: 320 MiB measured with torch 2.13 on Linux;
estimated for other versions."""
CPU_DEEPSPEED_BYTES = 20 * MIB
DEEPSPEED_BUCKET = 5e8
"""DeepSpeed's default number of elements, where the configuration is not ours."""
SMALLEST_BUCKET, LARGEST_BUCKET = 1e6, 2e8
ZERO3_LIVE_LAYERS = 2
"""Of stage3_max_live_parameters as we emit it: the layer that runs and the one fetched ahead, as FSDP2 has them."""


def zero_bucket_elements(num_parameters: float) -> float:
    """Return the elements of a bucket of DeepSpeed as we emit it: a twentieth of the model, 1e6 to 2e8.

    Even, since DeepSpeed stops at the start otherwise ("allgather_bucket_size must be a multiple of ... 2").
    """
    return min(LARGEST_BUCKET, max(SMALLEST_BUCKET, 2.0 * (num_parameters // 40)))


def context_bytes(layout: Layout, device_kind: DeviceKind) -> float:
    """Return what a process takes of the device before it trains."""
    if device_kind == "cpu":
        return CPU_PROCESS_BYTES + (CPU_DEEPSPEED_BYTES if layout.engine == "deepspeed" else 0)
    kinds = (
        (layout.data_parallel_degree > 1)
        + (layout.tensor_parallel_degree > 1)
        + (layout.pipeline_parallel_degree > 1)
        + (layout.context_parallel_degree > 1)
        + (layout.data_parallel_replicate_degree > 1 and layout.data_parallel_shard_degree > 1)
    )
    return CUDA_CONTEXT_BYTES + kinds * NCCL_BYTES + (MEGATRON_BYTES if in_megatron(layout) else 0.0)


def units_stay_whole(layout: Layout) -> bool:
    """Return whether FSDP2's units stay gathered, and their gradients whole, through all micro-batches of a step.

    In a pipeline torchtitan does not divide units again after forward (``reshard_after_forward`` off), and torch's
    stages gather and reduce once a step (distributed/pipelining/stage.py, ``backward_maybe_with_nosync``).
    """
    return layout.engine == "fsdp2" and layout.pipeline_parallel_degree > 1


def gathered_bytes(local: RankParameters, layout: Layout, recipe: Recipe, moment: Moment) -> float:
    """Return the whole parameters (and, in backward, their gradients) alive beside the shards.

    FSDP2: the root unit (embedding, head, final norm) stays whole from forward to the end of backward; beside it one
    layer in forward and two in backward (one ahead), and one layer's gradients in fp32 on the way to the
    reduce-scatter. At the very end the root's gradients, and their fp32 copy. In a pipeline all units of the stage
    stay whole, and one layer's 16-bit gradients are added to those in fp32.
    ZeRO-3: two layers' worth and the one that runs, the limit that our DeepSpeed configuration sets, at least the
    root's larger half.
    Autocast: 16-bit copies of the weights of the products; with checkpointing only during forward.
    """
    e = recipe.compute
    layer = local.one_layer
    full = layout.method == "full"
    if layout.engine == "fsdp2":
        if moment == "done":
            return (e + 4) * local.root if full else 0.0
        if units_stay_whole(layout):
            return e * local.total + (e * layer if full and moment == "end" else 0.0)
        layers = layer if moment == "forward" else 2 * layer
        reducing = 4 * layer if full and moment == "end" else 0.0
        return e * (local.root + layers) + reducing
    if layout.engine == "deepspeed" and layout.sharding == "parameters":
        live = min(local.total, max(ZERO3_LIVE_LAYERS * layer, local.head, zero_bucket_elements(local.total)) + layer)
        return e * live
    if recipe.autocast and full:
        if moment == "forward" or (moment == "start" and layout.activation_checkpointing == "none"):
            return e * (local.dense + local.experts + local.head)
        return e * layer
    return 0.0


def bucket_bytes(local: RankParameters, layout: Layout, recipe: Recipe) -> float:
    """Return communication buffers in backward; DDP's are the gradients themselves (gradient_as_bucket_view)."""
    if layout.engine != "deepspeed" or layout.sharding == "none":
        return 0.0
    divided = layout.tensor_parallel_degree * layout.pipeline_parallel_degree > 1
    elements = DEEPSPEED_BUCKET if divided else zero_bucket_elements(local.total)
    bucket = min(elements, local.total) * recipe.compute
    return (3 if layout.sharding != "parameters" else 2) * bucket
