"""Communication among data-parallel ranks: volumes by sharding (ZeRO, arXiv:1910.02054, section 7) and what shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
    ring_latency_seconds,
)
from stratadvisor.costs.compute import ComputeTime
from stratadvisor.costs.fp8 import linear_weights
from stratadvisor.costs.memo import Memo
from stratadvisor.costs.overlap import exposed_seconds, exposed_side_by_side, overlap_cost
from stratadvisor.costs.rates import device_rates
from stratadvisor.costs.states import NF4_BYTES
from stratadvisor.costs.trainable import gradient_bytes, model_part, trainable_parameters
from stratadvisor.costs.work import Placement
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds of one collective kind in a step: per step or per micro-batch, and when it may run."""

    forward: float = 0.0
    """Per micro-batch, beside the forward pass."""
    backward: float = 0.0
    """Per micro-batch, beside the backward pass."""
    last_backward: float = 0.0
    """Once, beside the last backward pass."""
    after: float = 0.0
    """Once, beside nothing."""
    links_differ: bool = False
    """Whether ``backward`` stays inside nodes and ``last_backward`` crosses the network, so that neither waits for the
    other."""
    memory_micro_batch: float = field(default=0.0, compare=False)
    """Per micro-batch: what passing over memory takes, hidden or not."""
    memory_step: float = field(default=0.0, compare=False)
    """The same once per step."""


def traffic(
    shape: ModelShape, layout: Layout, cluster: Cluster, placement: Placement, compression: str = "none"
) -> Traffic:
    """Return the seconds of each kind of data-parallel communication, hidden or not."""
    beside = _busy_memory(shape, layout, cluster, placement, compression)
    part = model_part(shape, layout)
    trainable = trainable_parameters(shape, layout)
    weights = part * (weight_bytes(layout) - _fp8_saving(shape, layout))
    trained_weights = trainable * (4 if layout.precision == "fp32" else 2)
    gradients = trainable * gradient_bytes(layout, compression)
    if layout.sharding == "none":
        return Traffic(last_backward=_reduction(trainable, gradients, placement, cluster, compression), **beside)
    group = placement.shard
    hops = ring_latency_seconds(group, cluster) * _calls(shape, layout, gradients)
    scatter = reduce_scatter_seconds(gradients, group, cluster) + hops
    across = all_reduce_seconds(gradients / layout.data_parallel_shard_degree, placement.replicate, cluster)
    if layout.sharding == "optimizer" and layout.whole_tensor_shards:
        owners = min(layout.data_parallel_shard_degree, _tensors(shape, layout))
        sent = all_gather_seconds(trained_weights, group, cluster) + owners * ring_latency_seconds(group, cluster)
        return Traffic(
            last_backward=_reduction(trainable, gradients, placement, cluster, compression), after=sent, **beside
        )
    if layout.sharding == "optimizer":
        return Traffic(
            last_backward=scatter + across, after=all_gather_seconds(trained_weights, group, cluster) + hops, **beside
        )
    if layout.sharding == "gradients" and layout.engine != "fsdp2":
        return Traffic(
            backward=scatter,
            last_backward=across,
            after=all_gather_seconds(trained_weights, group, cluster) + hops,
            **beside,
        )
    gather = all_gather_seconds(weights, group, cluster) + hops
    again = gather if layout.sharding == "parameters" else 0.0
    apart = group.num_nodes == 1 and placement.replicate.num_nodes > 1
    return Traffic(forward=gather, backward=again + scatter, last_backward=across, links_differ=apart, **beside)


class _Beside(TypedDict, total=False):
    """Fields of ``Traffic``."""

    memory_micro_batch: float
    memory_step: float


_RATE: Memo[float] = Memo(4096)


def _busy_memory(
    shape: ModelShape, layout: Layout, cluster: Cluster, placement: Placement, compression: str
) -> _Beside:
    """Return seconds per micro-batch, or once per step, for which communication keeps the devices' own memory busy.

    Every rank receives all parts but its own; an all-reduce is a scatter and a gather. Over gloo the processors copy,
    which its overlap accounts for.
    """
    group = placement.data if layout.sharding == "none" else placement.shard
    if cluster.backend != "nccl" or group.size < 2:
        return {}
    rate = _RATE.get(
        (cluster,),
        layout.precision,
        lambda: min(device_rates(c.device, layout.precision).memory_bytes_per_second for c in cluster.classes),
    )
    each = fitted.COLLECTIVE_MEMORY_PASSES * (group.size - 1) / group.size / rate
    trainable = trainable_parameters(shape, layout)
    gradients = trainable * gradient_bytes(layout, compression)
    trained_weights = trainable * (4 if layout.precision == "fp32" else 2)
    if layout.sharding == "none":
        return {"memory_step": each * (trainable / 8 * group.size if compression == "sign" else 2 * gradients)}
    if layout.sharding == "optimizer":
        return {"memory_step": each * (gradients + trained_weights)}
    if layout.sharding == "gradients" and layout.engine != "fsdp2":
        return {"memory_micro_batch": each * gradients, "memory_step": each * trained_weights}
    weights = model_part(shape, layout) * (weight_bytes(layout) - _fp8_saving(shape, layout))
    gathers = 2.0 if layout.sharding == "parameters" else 1.0
    return {"memory_micro_batch": each * (gathers * weights + gradients)}


def weight_bytes(layout: Layout) -> float:
    """Return bytes of one gathered parameter: QLoRA's frozen ones travel packed."""
    if layout.method == "qlora":
        return NF4_BYTES
    return 4.0 if layout.precision == "fp32" else 2.0


def _fp8_saving(shape: ModelShape, layout: Layout) -> float:
    """Return by how many bytes a gathered parameter is smaller on average: fp8 weights are quantised before."""
    if layout.fp8_scaling == "none" or layout.precision == "fp32" or layout.method == "qlora":
        return 0.0
    return min(1.0, linear_weights(shape) / shape.num_parameters)


def _calls(shape: ModelShape, layout: Layout, gradients: float) -> float:
    """Return in how many calls the weights or gradients move: one for each layer, or bucket by bucket."""
    if layout.sharding == "parameters" or layout.engine == "fsdp2":
        return max(1.0, shape.num_layers / layout.pipeline_parallel_degree)
    return math.ceil(max(1.0, gradients / fitted.ZERO_BUCKET_BYTES))


def _tensors(shape: ModelShape, layout: Layout) -> int:
    """Return a stage's weight tensors: products, their biases in attention, and norms; embedding, head, last norm."""
    layer = 4 + (3 if shape.gated_mlp else 2) + (2 if shape.attention_bias else 0)
    return 3 + layer * shape.num_layers // layout.pipeline_parallel_degree


def _reduction(trainable: float, gradients: float, placement: Placement, cluster: Cluster, compression: str) -> float:
    group = placement.data
    if compression == "sign":  # every rank's bits go to every rank: an all-gather of n/8 bytes per parameter
        return all_gather_seconds(trainable / 8 * group.size, group, cluster)
    return all_reduce_seconds(gradients, group, cluster)


def tail_share(shape: ModelShape, layout: Layout) -> float:
    """Return the share of a reduction that is ready only at the end: the last bucket, with the embedding in it."""
    trainable = trainable_parameters(shape, layout)
    if trainable <= 0:
        return 0.0
    bucket = fitted.OVERLAP_BUCKET_BYTES / (trainable * gradient_bytes(layout, "none"))
    embedding = shape.vocab_size * shape.hidden_size / trainable if layout.method == "full" else 0.0
    return min(1.0, max(bucket, embedding / layout.tensor_parallel_degree / layout.pipeline_parallel_degree))


def exposed_data_parallel_seconds(
    shape: ModelShape, layout: Layout, cluster: Cluster, moved: Traffic, compute: ComputeTime, micro_batches: float
) -> float:
    """Return what the traffic adds to ``micro_batches`` passes of ``compute``.

    A backward pass hides only as much as it lasts: what the last one has to hide beside its own gathers and scatters
    waits for them where both take the same links, and runs beside them where not.
    """
    cost = overlap_cost(layout, cluster.backend)
    if not all(c.peer_access for c in cluster.classes):
        cost = max(cost, fitted.STAGED_OVERLAP_COST)
    backward = compute.backward_seconds + compute.recompute_seconds
    # the first unit's gather and the last unit's scatter have nothing to run beside
    edge = 1.0 / max(1, shape.num_layers)
    shown = moved.after + moved.memory_step + micro_batches * moved.memory_micro_batch
    if moved.forward or moved.backward:
        shown += micro_batches * exposed_seconds(moved.forward, compute.forward_seconds, cost, edge)
        shown += max(0.0, micro_batches - 1.0) * exposed_seconds(moved.backward, backward, cost, edge)
    tail = tail_share(shape, layout) if moved.last_backward else 0.0
    if moved.links_differ:
        return shown + exposed_side_by_side(
            ((moved.backward, edge), (moved.last_backward, tail)), window=backward, cost=cost
        )
    together = moved.backward + moved.last_backward
    if together:
        late = (edge * moved.backward + tail * moved.last_backward) / together
        shown += exposed_seconds(together, backward, cost, late)
    return shown


def total_seconds(moved: Traffic, micro_batches: float) -> float:
    """Return all communication of a step, hidden or not."""
    return micro_batches * (moved.forward + moved.backward) + moved.last_backward + moved.after
