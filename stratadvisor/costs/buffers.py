"""Everything beside states, activations and logits: gathered units, communication buckets, context, reserve."""

from __future__ import annotations

from stratadvisor.costs.parameters import RankParameters
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.profile import DeviceKind
from stratadvisor.units import GIB, MIB

CUDA_CONTEXT_BYTES = 0.5 * GIB
"""Driver context, kernels and cuBLAS workspace of one process: 0.4 to 0.8 GiB on recent cards."""
NCCL_BYTES = 0.35 * GIB
"""Channels of NCCL for the communicators of one data-parallel group; a second share for every further kind of group."""
CPU_PROCESS_BYTES = 320 * MIB
"""Resident size of a Python process with torch, gloo and one DDP step: 320 MiB measured with torch 2.13 on Linux;
estimated for other versions."""
CPU_DEEPSPEED_BYTES = 20 * MIB
RESERVE_FRACTION = 0.04
"""Reserved and not allocated by torch's caching allocator, of everything that comes and goes (fit)."""
SMALLEST_BUCKET, LARGEST_BUCKET = 1e6, 2e8
ZERO3_LIVE_LAYERS = 4


def zero_bucket_elements(num_parameters: float) -> float:
    """Return the elements of a bucket of DeepSpeed as we emit it: a twentieth of the model, 1e6 to 2e8."""
    return min(LARGEST_BUCKET, max(SMALLEST_BUCKET, num_parameters / 20))


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
    return CUDA_CONTEXT_BYTES + kinds * NCCL_BYTES


def gathered_bytes(local: RankParameters, layout: Layout, recipe: Recipe, *, backward: bool) -> float:
    """Return the whole parameters (and, in backward, their gradients) alive beside the shards.

    FSDP2: the root unit (embedding, head, final norm) stays whole from forward to the end of backward; in backward two
    layers (one ahead), one layer's gradients and their fp32 copy on the way to the reduce-scatter.
    ZeRO-3: four layers' worth, the limit that our DeepSpeed configuration sets, at least the root's larger half.
    Autocast: 16-bit copies of the weights of the products; with full checkpointing only during forward.
    """
    e = recipe.compute
    layer = local.one_layer
    if layout.engine == "fsdp2":
        if not backward:
            return e * (local.root + layer)
        trained = 0.0 if layout.method != "full" else (e + (4 if e == 2 else 0)) * layer
        return e * (local.root + 2 * layer) + trained
    if layout.engine == "deepspeed" and layout.sharding == "parameters":
        live = min(local.total, max(ZERO3_LIVE_LAYERS * layer, local.head, zero_bucket_elements(local.total)) + layer)
        return e * live
    if recipe.autocast and layout.method == "full":
        weights = local.dense + local.experts + local.head
        if backward and layout.activation_checkpointing != "none":
            weights = layer
        return e * weights
    return 0.0


def bucket_bytes(local: RankParameters, layout: Layout, recipe: Recipe, *, backward: bool) -> float:
    """Return communication buffers. DDP's buckets are the gradients themselves (gradient_as_bucket_view)."""
    if layout.engine != "deepspeed" or layout.sharding == "none":
        return 0.0
    bucket = min(zero_bucket_elements(local.total), local.total) * recipe.gradient
    return (3 if backward else 1) * bucket if layout.sharding != "parameters" else 2 * bucket
