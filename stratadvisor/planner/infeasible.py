"""Nothing fits: the number that kills the closest way to train, and small changes that would fit, found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.planner import ranking
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.units import format_bytes, format_count

SHORTEST_SEQUENCE = 512
MAX_NODE_FACTOR = 64
SMALLER_SIZES = (70e9, 30e9, 13e9, 7e9, 3e9, 1e9, 350e6, 125e6)
SMALLER_SHARE = 0.8
"""A model hardly smaller than the one asked for is no other model."""
FIRST_TRIES = ("single", "ddp", "fsdp2", "hsdp", "zero2", "zero3", "zero_offload", "tp_fsdp2", "megatron_3d")
"""Strategies that decide whether something fits at all; the others need more memory than one of these."""
SHOWN = 3
SCORES_SHARE = 0.25
HELD_SHARE = 0.05
"""Memory of an idle device that its driver and a display may keep."""


def no_plan(cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...]) -> NoFeasiblePlanError:
    """Return the error to raise when no candidate is feasible."""
    found = list(islice(_changes(cluster, workload), SHOWN))
    hint = f"what would fit: {'; '.join(found)}" if found else "no change that was tried fits"
    return NoFeasiblePlanError(_message(workload, candidates), hint=hint)


def _message(workload: Workload, candidates: tuple[Candidate, ...]) -> str:
    what = f"{workload.model.name} ({workload.method}, {workload.optimizer}, sequences of {workload.sequence_length})"
    on_device = ranking.closest(c for c in candidates if not ranking.offloads(c))
    moved_out = ranking.closest(c for c in candidates if ranking.offloads(c))
    nearest = on_device or moved_out
    if nearest is None:
        return f"no strategy can train {what} here"
    message = (
        f"{what} does not fit: the closest, {STRATEGIES[nearest.strategy].title} with {nearest.variant},"
        f" {nearest.infeasible_reason}"
    )
    if moved_out is not None and moved_out is not nearest:
        message += f"; with offload, {moved_out.infeasible_reason}"
    return message + _scores(nearest)


def _scores(nearest: Candidate) -> str:
    """Return what the scores of the loss take where they are much of what is needed, and how to do without them."""
    scores, peak = nearest.memory.terms_bytes.get("logits", 0.0), nearest.memory.peak_bytes.likely
    if scores < SCORES_SHARE * peak:
        return ""
    return (
        f"; {format_bytes(scores)} of it are the scores of the loss (tokens x vocabulary), which neither sharding nor"
        " offload divides: a chunked or fused cross-entropy in the model does without them"
    )


def _changes(cluster: Cluster, workload: Workload) -> Iterator[str]:
    """Yield changes that make it fit, smallest first: what is trained stays longest the same."""
    if workload.precision != "auto" and _feasible(cluster, workload.model_copy(update={"precision": "auto"})):
        yield "--precision auto"
    freed, held = _freed(cluster)
    if held and _feasible(freed, workload):
        yield f"stopping what holds {held}"
    shorter = _shorter_sequence(cluster, workload)
    if shorter is not None:
        yield f"--seq-len {shorter}"
    yield from _smaller_states(cluster, workload)
    for method in ("lora", "qlora"):
        easier = {"full": 0, "lora": 1, "qlora": 2}
        if easier[method] > easier[workload.method] and workload.model.is_transformer:
            fits = _feasible(cluster, workload.model_copy(update={"method": method, "optimizer": "adamw"}))
            if fits:
                yield f"--method {method}"
                break
            if held and _feasible(freed, workload.model_copy(update={"method": method, "optimizer": "adamw"})):
                yield f"--method {method} after stopping what holds {held}"
                break
    factor = _more_nodes(cluster, workload)
    if factor is not None:
        total = cluster.num_devices * factor
        names = " and ".join(c.device.name for c in cluster.classes)
        yield f"{total} devices like {names} ({cluster.num_nodes * factor} nodes instead of {cluster.num_nodes})"
    smaller = _smaller_model(cluster, workload)
    if smaller is not None:
        yield f"a model of about {format_count(smaller)} parameters"


def _smaller_states(cluster: Cluster, workload: Workload) -> Iterator[str]:
    """Yield recipes of full training that hold fewer bytes per parameter."""
    if workload.method != "full" or workload.optimizer not in ("adamw", "adamw8bit"):
        return
    eight_bit = {"optimizer": "adamw8bit"}
    if workload.optimizer == "adamw" and _feasible(cluster, workload.model_copy(update=eight_bit)):
        yield "--optimizer adamw8bit"
        return
    if workload.precision == "bf16_pure":
        return
    if _feasible(cluster, workload.model_copy(update={"precision": "bf16_pure", **eight_bit})):
        first = "--optimizer adamw8bit " if workload.optimizer == "adamw" else ""
        yield (
            f"{first}--precision bf16_pure (6 bytes per parameter, but without an fp32 copy small updates are rounded"
            " away, so the loss may end higher)"
        )


def _freed(cluster: Cluster) -> tuple[Cluster, str]:
    """Return the cluster with all device memory free, and how much of which device is held now ("" when little is)."""
    held = ""
    classes: list[NodeClass] = []
    for node_class in cluster.classes:
        device = node_class.device
        total, free = device.memory_total_bytes, device.memory_free_bytes
        if device.kind != "cpu" and total is not None and free is not None and total - free > HELD_SHARE * total:
            held = held or f"{format_bytes(total - free)} of {device.name}"
            device = replace(device, memory_free_bytes=(1 - HELD_SHARE) * total)
        classes.append(replace(node_class, device=device))
    return replace(cluster, classes=tuple(classes)), held


def _feasible(cluster: Cluster, workload: Workload) -> bool:
    return any(c.feasible for name in FIRST_TRIES for c in STRATEGIES[name].candidates(cluster, workload))


def _shorter_sequence(cluster: Cluster, workload: Workload) -> int | None:
    length = workload.sequence_length // 2
    while length >= SHORTEST_SEQUENCE:
        if _feasible(cluster, workload.model_copy(update={"sequence_length": length})):
            return length
        length //= 2
    return None


def _more_nodes(cluster: Cluster, workload: Workload) -> int | None:
    """Return by how much more nodes of every class it would fit; their network does not matter to fit."""
    factor = 2
    while factor <= MAX_NODE_FACTOR:
        larger = replace(
            cluster,
            classes=tuple(replace(c, num_nodes=c.num_nodes * factor, hostnames=()) for c in cluster.classes),
        )
        room = workload.global_batch_size is None or workload.global_batch_size >= larger.num_devices
        if room and _feasible(larger, workload):
            return factor
        factor *= 2
    return None


def _smaller_model(cluster: Cluster, workload: Workload) -> float | None:
    if not workload.model.is_transformer:
        return None
    for size in SMALLER_SIZES:
        if size < SMALLER_SHARE * workload.model.num_parameters:
            shape = shape_for_size(int(size))
            positions = shape.learned_positions and 0 < shape.max_sequence_length < workload.sequence_length
            if not positions and _feasible(cluster, workload.model_copy(update={"model": shape})):
                return size
    return None
