"""Everything beside states, activations and logits: gathered units, communication buckets, context."""

from __future__ import annotations

from typing import Literal

from stratadvisor.costs.activations import in_megatron
from stratadvisor.costs.parameters import RankParameters
from stratadvisor.costs.states import NF4_PACKED_BYTES, Recipe
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
MEGATRON_BYTES = 3.7 * GIB
"""Megatron-LM's communicators and fused kernels. It makes every kind of group, used or not, and talks over most of
them at the start, so their number does not follow the degrees: 3.9 GiB with the context, in runs with tensor
parallelism alone as with all three (fit on nvidia-smi readings of two sources)."""
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
    if in_megatron(layout):
        return CUDA_CONTEXT_BYTES + MEGATRON_BYTES
    kinds = (
        (layout.data_parallel_degree > 1)
        + (layout.tensor_parallel_degree > 1)
        + (layout.pipeline_parallel_degree > 1)
        + (layout.context_parallel_degree > 1)
        + (layout.data_parallel_replicate_degree > 1 and layout.data_parallel_shard_degree > 1)
    )
    return CUDA_CONTEXT_BYTES + kinds * NCCL_BYTES


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
    QLoRA: a layer's unit is gathered as it is stored, in 4 bit. With shards on the host, each is copied to the device
    before it is gathered (torch's _fsdp_param.py, ``all_gather_inputs``; _flat_param.py, ``pre_unshard``).
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
        whole = e * layer
        if layout.method == "qlora" and local.layers:
            whole = (NF4_PACKED_BYTES * local.dense + e * local.experts) / local.layers
        reducing = 4 * layer if full and moment == "end" else 0.0
        gathered = e * local.root + (1 if moment == "forward" else 2) * whole
        if layout.parameter_offload != "none":
            gathered *= 1 + 1 / max(1, layout.data_parallel_shard_degree * layout.context_parallel_degree)
        return gathered + reducing
    if layout.engine == "deepspeed" and layout.sharding == "parameters":
        live = min(local.total, max(ZERO3_LIVE_LAYERS * layer, local.head, zero_bucket_elements(local.total)) + layer)
        return e * live
    if recipe.autocast and full:
        if moment == "forward" or (moment == "start" and layout.activation_checkpointing == "none"):
            return e * (local.dense + local.experts + local.head)
        return e * layer
    return 0.0


def bucket_bytes(local: RankParameters, layout: Layout, recipe: Recipe) -> float:
    """Return communication buffers in backward; DDP's are the gradients themselves (gradient_as_bucket_view).

    Around a model divided by Megatron-LM, DeepSpeed's pipeline engine sums up gradients after the last micro-batch: one
    bucket (runtime/zero/stage_1_and_2.py, ``reduce_gradients``), beside it the gathered weights of another.
    """
    if layout.engine != "deepspeed":
        return 0.0
    if layout.tensor_parallel_degree * layout.pipeline_parallel_degree == 1:
        if layout.sharding == "none":
            return 0.0
        bucket = min(zero_bucket_elements(local.total), local.total) * recipe.compute
        return (3 if layout.sharding != "parameters" else 2) * bucket
    bucket = min(DEEPSPEED_BUCKET, local.total)
    largest = max(local.root, local.one_layer / 3)
    flat = min(local.total, max(bucket, largest)) if layout.data_parallel_degree > 1 else 0.0
    if layout.sharding == "none":
        return recipe.compute * flat
    if recipe.gradient > recipe.compute:
        # BF16_Optimizer: a gradient is cast to be added to its fp32 sum (runtime/bf16_optimizer.py,
        # ``_update_hp_grad``); the sums are flattened for the all-reduce (runtime/engine.py, ``allreduce_bucket``)
        return recipe.compute * bucket + 4 * (largest + flat)
    return 2 * recipe.compute * bucket
