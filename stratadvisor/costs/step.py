"""Time of one optimizer step of the whole job, for every engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.changing import Waiting, expected_maximum, lockstep_seconds, within
from stratadvisor.costs.collectives import (
    Group,
    all_reduce_seconds,
    broadcast_seconds,
    inter_node_bandwidth,
    intra_node_bandwidth,
)
from stratadvisor.costs.compute import ComputeTime, head_seconds, micro_batch_seconds
from stratadvisor.costs.data_parallel import Traffic, exposed_data_parallel_seconds, total_seconds, traffic
from stratadvisor.costs.flops import model_flops_per_sequence
from stratadvisor.costs.fp8 import weights_seconds
from stratadvisor.costs.memo import Memo
from stratadvisor.costs.model_parallel import per_micro_batch_seconds, pipeline_seconds
from stratadvisor.costs.optimizer_step import optimizer_seconds
from stratadvisor.costs.overlap import exposed_seconds, overlap_cost
from stratadvisor.costs.processors import launch_seconds, update_seconds
from stratadvisor.costs.rates import device_rates
from stratadvisor.costs.span import relative_width
from stratadvisor.costs.trainable import trainable_parameters
from stratadvisor.costs.work import ClassWork, Placement, place
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Layout, Span, TimeEstimate
from stratadvisor.schema.workload import ModelShape

__all__ = ["ClassWork", "estimate_step"]

TERMS = (
    "matmul",
    "attention",
    "memory_bound",
    "recompute",
    "launch",
    "tensor_parallel",
    "pipeline_bubble",
    "exposed_communication",
    "optimizer",
    "offload",
    "data_wait",
    "straggler",
)
MAX_LOADER_WORKERS = 8


@dataclass(slots=True)
class _ClassTime:
    """One class's own step: its terms, and communication that runs beside or after them."""

    terms: dict[str, float]
    communication: float
    exposed: float
    assumptions: tuple[str, ...]
    basis: str

    @property
    def total(self) -> float:
        return sum(self.terms.values())


_SUB_CLUSTERS: Memo[Cluster] = Memo(4096)


def estimate_step(
    shape: ModelShape,
    layout: Layout,
    cluster: Cluster,
    work: tuple[ClassWork, ...],
    *,
    compression: str = "none",
    strategy: str,
) -> TimeEstimate:
    """Return the time of one optimizer step.

    Args:
        shape: the model.
        layout: degrees, sharding, precision and so on; ``engine`` decides what overlaps.
        cluster: the classes of ``work`` and the network between nodes.
        work: what each device of each class does.
        compression: of gradients on the wire: none, bf16, fp16 or sign.
        strategy: name under which earlier runs were calibrated; ``hierarchical`` averages inside a node every step.

    Engine ``local``: shards (``data_parallel_shard_degree``; with ``sharding="none"`` a group that all-reduces every
    step) work together, replicas meet every ``sync_interval_steps``. Engine ``async``: every device is a worker of a
    server; the step is the time in which all together process one global batch.

    """
    classes = tuple(w.node_class for w in work)
    used = cluster
    if tuple(map(id, classes)) != tuple(map(id, cluster.classes)):
        used = _SUB_CLUSTERS.get((cluster, *classes), 0, lambda: replace(cluster, classes=classes))
    placement = place(layout, work)
    single_device = layout.world_size == 1
    if layout.engine == "async" and not single_device:
        times = [_class_time(shape, layout, used, w, placement, Traffic(), strategy) for w in work]
        chosen = _asynchronous(shape, layout, used, work, times)
    else:
        moved = Traffic() if single_device else _moved(shape, layout, used, placement, compression)
        times = [_class_time(shape, layout, used, w, placement, moved, strategy) for w in work]
        chosen = max(times, key=lambda t: t.total)
        if not single_device:
            chosen.terms["straggler"] += _waiting(chosen.total, times, layout, work)
        if layout.engine == "local":
            _add_exchange(chosen, shape, layout, used, placement, compression)
    assumptions = dict.fromkeys(chosen.assumptions)
    assumed_network = _network_assumptions(used, placement, single_device)
    assumptions.update(dict.fromkeys(assumed_network))
    likely = chosen.total
    width = relative_width(chosen.basis, chosen.exposed / likely, assumed=bool(assumed_network), cluster=used)
    width += fitted.SPAN_PER_VARIATION * max(_noise(w.node_class) or 0.0 for w in work)
    sequences = _sequences(layout, work)
    return TimeEstimate(
        terms_seconds=chosen.terms,
        step_seconds=Span.around(likely, width),
        communication_seconds=chosen.communication,
        exposed_communication_seconds=min(chosen.exposed, likely),
        model_flops_per_step=sequences * model_flops_per_sequence(shape, layout.sequence_length, layout.method),
        tokens_per_step=sequences * layout.sequence_length,
        assumptions=tuple(assumptions),
    )


def _sequences(layout: Layout, work: tuple[ClassWork, ...]) -> float:
    devices = sum(w.node_class.num_devices for w in work)
    total = sum(w.node_class.num_devices * w.batch_per_device for w in work)
    return total * layout.world_size / devices / layout.model_parallel_degree


def _moved(shape: ModelShape, layout: Layout, cluster: Cluster, placement: Placement, compression: str) -> Traffic:
    if layout.engine != "local":
        return traffic(shape, layout, cluster, placement, compression)
    if layout.data_parallel_shard_degree == 1:
        return Traffic()
    if layout.sharding == "none":  # exact averaging inside each group every step
        return traffic(shape, layout, cluster, replace(placement, data=placement.shard), compression)
    alone = replace(placement, replicate=Group(num_nodes=1, ranks_per_node=1))
    return traffic(shape, layout, cluster, alone, compression)


def _class_time(
    shape: ModelShape,
    layout: Layout,
    cluster: Cluster,
    work: ClassWork,
    placement: Placement,
    moved: Traffic,
    strategy: str,
) -> _ClassTime:
    node_class = work.node_class
    compute = micro_batch_seconds(shape, layout, node_class.device, work.micro_batch_size)
    count = work.micro_batches
    parallel, parallel_shown = per_micro_batch_seconds(shape, layout, cluster, placement, work.micro_batch_size)
    if node_class.device.kind != "cpu":  # a device that waits for its host's launches moves data meanwhile
        parallel_shown = max(0.0, parallel_shown - compute.terms_seconds["launch"])
    bubble, sends = 0.0, 0.0
    if layout.pipeline_parallel_degree > 1:
        head = head_seconds(shape, layout, node_class.device, work.micro_batch_size)
        bubble, sends = pipeline_seconds(
            shape,
            layout,
            cluster,
            placement,
            compute.total_seconds + parallel_shown,
            head,
            work.micro_batch_size,
            count,
        )
    held = trainable_parameters(shape, layout)
    if layout.sharding != "none":
        held /= layout.data_parallel_shard_degree
    update = optimizer_seconds(shape, layout, node_class, held, placement.ranks_per_node)
    exposed = exposed_data_parallel_seconds(shape, layout, cluster, moved, compute, count)
    terms = dict.fromkeys(TERMS, 0.0)
    for name, seconds in compute.terms_seconds.items():
        terms[name] = seconds * count
    terms["memory_bound"] += weights_seconds(shape, layout, device_rates(node_class.device, layout.precision))
    terms["launch"] = launch_seconds(terms["launch"], _engine_step_seconds(layout, node_class), layout, node_class)
    terms["tensor_parallel"] = parallel_shown * count
    terms["pipeline_bubble"] = bubble
    terms["exposed_communication"] = exposed + sends
    terms["optimizer"] = update.update_seconds + update_seconds(_layers(shape, layout), layout, node_class)
    terms["offload"] = _exposed_offload(update.offload_seconds, update.offload_micro_batch_seconds, compute, count)
    terms["straggler"] = _straggler(compute.total_seconds * count, node_class, layout, placement)
    terms["data_wait"] = _data_wait(node_class, work, sum(terms.values()))
    rates = device_rates(node_class.device, layout.precision)
    ratio = _calibration(cluster, node_class, strategy)
    if ratio is not None:
        terms = {name: seconds * ratio for name, seconds in terms.items()}
    scale = 1.0 if ratio is None else ratio
    return _ClassTime(
        terms=terms,
        communication=(total_seconds(moved, count) + parallel * count + sends) * scale,
        exposed=terms["exposed_communication"] + terms["tensor_parallel"],
        assumptions=(*rates.assumptions, *update.assumptions),
        basis="calibrated" if ratio is not None else rates.basis,
    )


def _engine_step_seconds(layout: Layout, node_class: NodeClass) -> float:
    """Return what the engine's own Python takes for an optimizer step."""
    seconds = fitted.ENGINE_HOST_SECONDS_PER_STEP.get(layout.engine, 0.0)
    return seconds * (1.0 if node_class.device.kind == "cpu" else fitted.GPU_HOST_SHARE)


def _layers(shape: ModelShape, layout: Layout) -> float:
    """Return layers whose states a rank updates."""
    shards = 1 if layout.sharding == "none" else layout.data_parallel_shard_degree
    return shape.num_layers / layout.pipeline_parallel_degree / shards


def _calibration(cluster: Cluster, node_class: NodeClass, strategy: str) -> float | None:
    if not cluster.calibration_time_ratios:
        return None
    device = node_class.device
    for name in (device.catalog_key, device.name):
        ratio = cluster.calibration_time_ratios.get((name, strategy)) if name else None
        if ratio is not None:
            return ratio
    return None


def _exposed_offload(per_step: float, per_micro_batch: float, compute: ComputeTime, count: float) -> float:
    """Return offload time that shows: prefetched weights hide behind half of the compute, the update behind nothing."""
    hidden = 0.5 * compute.total_seconds
    return per_step + count * max(0.0, per_micro_batch - hidden)


def _noise(node_class: NodeClass) -> float | None:
    """Return the coefficient of variation from step to step; None when not known."""
    if node_class.speed_variation is None:
        return None
    return within(node_class.speed_variation, node_class.speed_levels)


def _straggler(compute: float, node_class: NodeClass, layout: Layout, placement: Placement) -> float:
    """Return how far the last of n ranks is behind the mean: the expected maximum, over sqrt(H) with H free steps."""
    variation = _noise(node_class)
    if variation is None or placement.num_ranks < 2 or layout.engine == "async":
        return 0.0
    steps = layout.sync_interval_steps if layout.engine == "local" else 1
    return compute * variation * expected_maximum(placement.num_ranks) / math.sqrt(steps)


CONSTANT_TERMS = ("tensor_parallel", "exposed_communication", "offload", "data_wait")
"""What takes no longer while a device is slow."""


def _waiting(longest: float, times: list[_ClassTime], layout: Layout, work: tuple[ClassWork, ...]) -> float:
    """Return by how much a step is longer than ``longest``, its slowest rank's, since speeds change in phases."""
    if not any(w.node_class.speed_levels for w in work):
        return 0.0
    used = layout.world_size / sum(w.node_class.num_devices for w in work)
    classes = []
    for time, w in zip(times, work, strict=True):
        constant = sum(time.terms[name] for name in CONSTANT_TERMS)
        classes.append(
            Waiting(
                num_nodes=max(1, round(w.node_class.num_nodes * used)),
                changing_seconds=time.total - constant,
                constant_seconds=constant,
                levels=w.node_class.speed_levels,
                phase_seconds=w.node_class.speed_phase_seconds,
            )
        )
    free = layout.sync_interval_steps if layout.engine == "local" else 1
    return max(0.0, lockstep_seconds(classes, free) - longest)


def _data_wait(node_class: NodeClass, work: ClassWork, step: float) -> float:
    """Return how long the device waits for its sequences when loader workers prepare them during the step."""
    if node_class.data_item_seconds is None:
        return 0.0
    cores = node_class.cpu_cores or 2.0 * node_class.devices_per_node
    workers = max(1, min(MAX_LOADER_WORKERS, int(cores / node_class.devices_per_node) - 1))
    return max(0.0, node_class.data_item_seconds * work.batch_per_device / workers - step)


def _add_exchange(
    time: _ClassTime, shape: ModelShape, layout: Layout, cluster: Cluster, placement: Placement, compression: str
) -> None:
    """Add the averaging of weights among replicas, spread over the steps between two exchanges.

    A replica of several ranks that each hold all weights sends them once, by its leader, who hands the mean round;
    ranks of a sharded replica each exchange their part. An exchange under way hides behind the steps it is delayed by.
    """
    message = (2.0 if compression in ("bf16", "fp16") else 4.0) * trainable_parameters(shape, layout)
    replicas, inside, interval = placement.replicate, 0.0, layout.sync_interval_steps
    if layout.sharding != "none":
        message /= layout.data_parallel_shard_degree
    elif layout.data_parallel_shard_degree > 1:
        replicas = replace(replicas, groups_per_node=1)
        inside = broadcast_seconds(4.0 * trainable_parameters(shape, layout), placement.shard, cluster)
    across = all_reduce_seconds(message, replicas, cluster)
    window = layout.exchange_delay_steps * time.total
    shown = (exposed_seconds(across, window, overlap_cost(layout, cluster.backend)) + inside) / interval
    time.terms["exposed_communication"] += shown
    time.communication += (across + inside) / interval
    time.exposed += shown


def _asynchronous(
    shape: ModelShape, layout: Layout, cluster: Cluster, work: tuple[ClassWork, ...], times: list[_ClassTime]
) -> _ClassTime:
    """Return the time of one global batch through a server: no worker waits for another, all share its link."""
    message = 4.0 * trainable_parameters(shape, layout)
    nodes = sum(w.node_class.num_nodes for w in work)
    rate = inter_node_bandwidth(cluster)[0] if nodes > 1 else intra_node_bandwidth(cluster)[0]
    latency = cluster.inter_node_latency_seconds if nodes > 1 else work[0].node_class.intra_node_latency_seconds
    interval = layout.sync_interval_steps
    transfer = 2 * (message / rate + latency) / interval  # push and pull
    workers = sum(w.node_class.num_devices for w in work)
    alone = [t.total + transfer for t in times]
    batch = sum(w.node_class.num_devices * w.batch_per_device for w in work)
    free = batch / sum(w.node_class.num_devices * w.batch_per_device / s for w, s in zip(work, alone, strict=True))
    served = workers * message / rate / interval  # both directions at once
    step = max(free, served)
    terms = dict.fromkeys(TERMS, 0.0)
    for w, t, seconds in zip(work, times, alone, strict=True):
        share = w.node_class.num_devices / workers * free / seconds
        for name, value in t.terms.items():
            terms[name] += value * share
    terms["exposed_communication"] += step - sum(terms.values())
    return _ClassTime(
        terms=terms,
        communication=max(transfer, served),
        exposed=terms["exposed_communication"],
        assumptions=tuple(dict.fromkeys(a for t in times for a in t.assumptions)),
        basis=max((t.basis for t in times), key=("calibrated", "measured", "catalog", "assumed").index),
    )


def _network_assumptions(cluster: Cluster, placement: Placement, single_device: bool) -> list[str]:
    if single_device:
        return []
    notes = []
    groups = (placement.data, placement.tensor, placement.context)
    if any(g.ranks_per_node > 1 for g in groups):
        notes.append(intra_node_bandwidth(cluster)[1])
    if any(g.num_nodes > 1 for g in groups) or placement.stages_cross_nodes:
        notes.append(inter_node_bandwidth(cluster)[1])
    return [n for n in notes if n]
