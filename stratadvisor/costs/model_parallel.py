"""Tensor, context, expert and pipeline parallelism: what they add to a step."""

from __future__ import annotations

import math

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import all_gather_seconds, all_reduce_seconds, send_seconds
from stratadvisor.costs.overlap import overlaps_model_parallel
from stratadvisor.costs.work import Placement
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


def per_micro_batch_seconds(
    shape: ModelShape, layout: Layout, cluster: Cluster, placement: Placement, micro_batch_size: int
) -> tuple[float, float]:
    """Return (all, exposed) seconds of tensor, context and expert communication of one micro-batch on one stage.

    Per layer two all-reduces of the activations forward and two backward, two more when the layer is recomputed
    (Megatron-LM, arXiv:1909.08053, section 3); with sequence parallelism the same volume as gather and scatter.
    """
    if layout.model_parallel_degree == 1 and layout.expert_parallel_degree == 1:
        return 0.0, 0.0
    layers = shape.num_layers / layout.pipeline_parallel_degree
    element = 4 if layout.precision == "fp32" else 2
    tokens = micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    activations = element * tokens * shape.hidden_size
    passes = 6 if layout.activation_checkpointing == "full" else 4
    tensor = passes * layers * all_reduce_seconds(activations, placement.tensor, cluster)
    keys = 2.0 * element * tokens * layout.context_parallel_degree * shape.key_value_width
    keys /= layout.tensor_parallel_degree
    # keys and values round the ring forward, again and with their gradients backward
    context = 3 * layers * all_gather_seconds(keys, placement.context, cluster)
    expert = 0.0
    if layout.expert_parallel_degree > 1:
        sparse = max(0, shape.num_layers - shape.num_dense_layers) / layout.pipeline_parallel_degree
        routed = activations * max(1, shape.num_experts_per_token) / layout.tensor_parallel_degree
        expert = passes * sparse * _dispatch_seconds(routed, layout, cluster, placement)
    if layout.fp8_scaling != "none" and layout.sequence_parallel:
        tensor *= fitted.FP8_TENSOR_PARALLEL_SHARE
    overlapped = overlaps_model_parallel(layout)
    share = fitted.TENSOR_PARALLEL_OVERLAPPED if overlapped else fitted.TENSOR_PARALLEL_EXPOSED
    shown = tensor * share + context * fitted.CONTEXT_PARALLEL_EXPOSED + expert
    return tensor + context + expert, shown


def _dispatch_seconds(routed: float, layout: Layout, cluster: Cluster, placement: Placement) -> float:
    """Return the time to hand a rank's tokens to the experts they chose, ``routed`` bytes, evenly over all of them.

    What stays in the node takes its links, the rest the network, at the same time.
    """
    experts = layout.expert_parallel_degree
    here = max(1, min(experts, placement.ranks_per_node // layout.tensor_parallel_degree))
    inside = send_seconds(routed * (here - 1) / experts, cluster, across_nodes=False)
    if here >= experts:
        return inside
    far = routed * (experts - here) / experts
    return max(inside, send_seconds(far, cluster, across_nodes=True, sharing=placement.ranks_per_node))


def pipeline_seconds(
    shape: ModelShape,
    layout: Layout,
    cluster: Cluster,
    placement: Placement,
    micro_batch_seconds: float,
    head_seconds: float,
    micro_batch_size: int,
    micro_batches: float,
) -> tuple[float, float]:
    """Return (bubble, sends) that a pipeline adds to ``micro_batches`` passes of a stage with the mean of layers.

    Fill and drain pass once through every other stage, (p - 1) / v passes when all are alike (Megatron-LM,
    arXiv:2104.04473, section 2.2); the stage with the most layers, or that of the output projection, sets the pace.
    """
    stages = layout.pipeline_parallel_degree
    if stages == 1:
        return 0.0, 0.0
    even = shape.num_layers / stages
    fullest = math.ceil(even)
    lightest = math.floor(even)
    if layout.stage_layers:
        fullest, lightest = max(layout.stage_layers[:-1]), layout.stage_layers[-1]
    pace = max(micro_batch_seconds * fullest / even, micro_batch_seconds * lightest / even + head_seconds)
    chunks = layout.virtual_pipeline_chunks
    others = stages * micro_batch_seconds + head_seconds - pace
    drains = max(1.0, micro_batches / layout.pipeline_micro_batches) if layout.pipeline_micro_batches else 1.0
    bubble = drains * others / chunks + micro_batches * (pace - micro_batch_seconds)
    element = 4 if layout.precision == "fp32" else 2
    message: float = element * micro_batch_size * layout.sequence_length * shape.hidden_size
    message /= layout.context_parallel_degree * layout.tensor_parallel_degree
    one = send_seconds(message, cluster, across_nodes=placement.stages_cross_nodes, sharing=placement.ranks_per_node)
    sends = 2 * chunks * (micro_batches * fitted.PIPELINE_SEND_EXPOSED + drains * (stages - 1)) * one
    return bubble, sends
