"""Tensor, pipeline, context, expert and data parallelism together, as Megatron-LM runs them (arXiv:2104.04473).

Data-parallel ranks divide the optimizer states (distributed optimizer); norms and residuals are divided along the
sequence among tensor-parallel ranks; pipelines run one forward, one backward, interleaved where that pays. Every valid
combination of degrees is costed with its largest micro-batch; smaller ones and interleaving are tried on those that
could still become the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Checkpointing, Layout, MemoryEstimate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import build, describe
from stratadvisor.strategies.fit import memory_of, shortage, with_share
from stratadvisor.strategies.megatron_degrees import Degrees, degrees
from stratadvisor.strategies.selections import Selection
from stratadvisor.strategies.site import Share, Site, layout_for, sharing_site
from stratadvisor.strategies.zero import whole_nodes

MICRO_BATCHES = (1, 2, 4, 8)
RECOMPUTE: tuple[Checkpointing, ...] = ("none", "full")
"""With fused attention Megatron-LM's selective recomputation has nothing left to save."""
OPTIMIZERS = ("adamw", "sgd")
EVEN_EXPERTS = "tokens are taken to spread evenly over the experts, none is dropped (capacity factor 1)"
DEVICE_KINDS = ("cuda", "rocm")
NOTE = (
    "Megatron-LM runs this plan: it and Transformer Engine must be installed; this project has not run it, it has no"
    " such devices"
)


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield all degrees on selections of whole alike nodes; the one that lacks least where none of them fits."""
    if not _able(cluster, workload):
        return
    for selection in whole_nodes(cluster):
        if selection.uniform and selection.cluster.num_devices > 1:
            yield from _on(selection, workload)


def _able(cluster: Cluster, workload: Workload) -> bool:
    shape = workload.model
    return (
        shape.family == "decoder"
        and workload.method == "full"
        and workload.optimizer in OPTIMIZERS
        and workload.precision != "bf16_pure"
        and all(c.device.kind in DEVICE_KINDS for c in cluster.classes)
    )


def _on(selection: Selection, workload: Workload) -> Iterator[Candidate]:
    found: list[tuple[Candidate, Site, Degrees, int]] = []
    closest: Candidate | None = None
    for way in degrees(selection.cluster, workload):
        shared = sharing_site("megatron_3d", selection, workload, together=way.together)
        if shared is None:
            continue
        at, batch = shared
        fitting, lacking = _largest_that_fit(at, way, batch)
        found += [(candidate, at, way, batch) for candidate in fitting]
        if lacking is not None and (closest is None or lacking.shortfall_bytes < closest.shortfall_bytes):
            closest = lacking
    if not found:
        if closest is not None:
            yield closest
        return
    yield from (candidate for candidate, *_ in found)
    best = min(candidate.run_seconds.likely for candidate, *_ in found)
    for candidate, at, way, batch in sorted(found, key=lambda each: _without_bubble(each[0])):
        if _without_bubble(candidate) >= best:
            break
        for refined in _refined(candidate, at, way, batch):
            best = min(best, refined.run_seconds.likely)
            yield refined


def _without_bubble(candidate: Candidate) -> float:
    """Return what no smaller micro-batch and no interleaving can undercut: they only fill the pipeline better."""
    bubble = candidate.time.terms_seconds["pipeline_bubble"] / candidate.time.step_seconds.likely
    return candidate.run_seconds.likely * (1 - bubble)


def _largest_that_fit(at: Site, way: Degrees, batch: int) -> tuple[list[Candidate], Candidate | None]:
    """Return, without and with recomputation, the largest micro-batch that fits; else the smallest, which does not."""
    sizes = [m for m in MICRO_BATCHES if batch % m == 0]
    fitting: list[Candidate] = []
    lacking: Candidate | None = None
    reached = 0
    if not at.memory_known:
        return [_build(at, _layout(at, way, activation_checkpointing=c), sizes[0], batch) for c in RECOMPUTE], None
    for checkpointing in RECOMPUTE:
        layout = _layout(at, way, activation_checkpointing=checkpointing)
        size, known = 0, None
        for micro in sizes:
            memories = _memories(at, layout, micro, batch)
            if memories is None:
                break
            size, known = micro, memories
        if size > reached:
            fitting.append(_build(at, layout, size, batch, known))
            reached = size
        elif not size and checkpointing == "full":
            lacking = _build(at, layout, sizes[0], batch)
        if reached == sizes[-1]:
            break  # recomputing would only make it slower
    return fitting, lacking


def _layout(at: Site, way: Degrees, **changes: object) -> Layout:
    data = at.cluster.num_devices // way.together
    layout = layout_for(at, "megatron", sharding="optimizer", shard=data)
    return replace(
        layout,
        tensor_parallel_degree=way.tensor,
        pipeline_parallel_degree=way.pipeline,
        context_parallel_degree=way.context,
        expert_parallel_degree=way.expert,
        stage_layers=way.stage_layers,
        sequence_parallel=way.tensor > 1,
        compiled=True,
        **changes,  # type: ignore[arg-type]
    )


def _memories(at: Site, layout: Layout, micro: int, batch: int) -> tuple[MemoryEstimate, ...] | None:
    """Return the memory of the class, None where it does not fit."""
    share = Share(micro, batch // micro, batch)
    layout = with_share(layout, share)
    memories = tuple(memory_of(at, layout, c, share) for c in at.cluster.classes)
    lacking = any(shortage(c, m, layout)[1] for c, m in zip(at.cluster.classes, memories, strict=True))
    return None if lacking else memories


def _build(
    at: Site, layout: Layout, micro: int, batch: int, memories: tuple[MemoryEstimate, ...] | None = None
) -> Candidate:
    share = Share(micro, batch // micro, batch)
    settings: dict[str, str | int | float | bool] = {}
    if layout.stage_layers and (at.workload.model.num_layers + 2) % layout.pipeline_parallel_degree == 0:
        settings["account_for_embedding_and_loss"] = True
    elif layout.stage_layers:
        settings |= {"first_stage_layers": layout.stage_layers[0], "last_stage_layers": layout.stage_layers[-1]}
    variant = describe(layout, share)
    notes = (NOTE, EVEN_EXPERTS) if at.workload.model.num_experts else (NOTE,)
    return build(at, layout, (share,), variant=variant, settings=settings, notes=notes, memories=memories)


def _refined(best: Candidate, at: Site, way: Degrees, batch: int) -> Iterator[Candidate]:
    """Yield smaller micro-batches, and more and more interleaved schedules, while either makes the step shorter."""
    largest = best.layout.micro_batch_size
    reached = best.run_seconds.likely
    for micro in (m for m in reversed(MICRO_BATCHES) if m <= largest):
        here = best.run_seconds.likely if micro == largest else math.inf
        for chunks in way.chunks(at.workload.model.num_layers):
            if (micro == largest and chunks == 1) or (chunks > 1 and (batch // micro) % way.pipeline):
                continue
            layout = replace(best.layout, virtual_pipeline_chunks=chunks)
            memories = _memories(at, layout, micro, batch)
            if memories is None:
                break
            candidate = _build(at, layout, micro, batch, memories)
            yield candidate
            if candidate.run_seconds.likely >= here:
                break
            here = candidate.run_seconds.likely
        if micro < largest and here >= reached:
            break
        reached = min(reached, here)


MEGATRON_3D = Strategy(
    name="megatron_3d",
    title="tensor, pipeline and data parallel with Megatron-LM",
    family="synchronous",
    target="megatron",
    candidates=candidates,
)
