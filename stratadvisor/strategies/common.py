"""Cost one configuration: memory of each class, time of a step, time to the target; and explore the usual variants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.costs.step import ClassWork, estimate_step
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Checkpointing, ClassShare, Layout, MemoryEstimate, Span, TimeEstimate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.batches import micro_batches
from stratadvisor.strategies.borrowed import with_borrowed_ratio
from stratadvisor.strategies.fit import memory_of, shortage, with_share
from stratadvisor.strategies.frozen import with_frozen_time
from stratadvisor.strategies.run_length import extra_tokens_fraction, run_tokens
from stratadvisor.strategies.site import Share, Site
from stratadvisor.units import format_bytes

UNKNOWN_MEMORY = "unknown memory"
"""How a note begins that a plan shows as a warning."""
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
_UNTIMED = TimeEstimate(
    terms_seconds={},
    step_seconds=Span(low=0, likely=0, high=0),
    communication_seconds=0,
    exposed_communication_seconds=0,
    model_flops_per_step=0,
    tokens_per_step=0,
)
_COMPUTE_TERMS = ("matmul", "attention", "memory_bound", "recompute", "launch")


def build(
    at: Site,
    layout: Layout,
    shares: tuple[Share, ...],
    *,
    variant: str,
    compression: str = "none",
    extra_steps: tuple[float, str] = (0.0, ""),
    settings: dict[str, str | int | float | bool] | None = None,
    notes: tuple[str, ...] = (),
    memories: tuple[MemoryEstimate, ...] | None = None,
) -> Candidate:
    """Return the costed candidate; shares, and memories where they are known already, stand in the order of classes."""
    if memories is None:
        memories = tuple(memory_of(at, layout, c, s) for c, s in zip(at.cluster.classes, shares, strict=True))
    lacks = [shortage(c, m, layout) for c, m in zip(at.cluster.classes, memories, strict=True)]
    missing, reason = max(lacks, key=lambda lack: lack[0])
    reason = at.problem or reason
    slowest = min(shares, key=lambda s: s.batch_per_device)
    layout = with_share(layout, slowest)
    said = [*at.notes, *notes, *([extra_steps[1]] if extra_steps[1] else [])]
    for node_class, memory in zip(at.cluster.classes, memories, strict=True):
        if node_class.device.usable_memory_bytes is None:
            needed = format_bytes(memory.peak_bytes.high)
            said.append(f"{UNKNOWN_MEMORY} of {node_class.device.name}: whether the {needed} needed fit is open")
    taken = sum(c.num_devices * s.batch_per_device for c, s in zip(at.cluster.classes, shares, strict=True))
    batch = taken // layout.model_parallel_degree
    forced = extra_tokens_fraction(at.workload, batch)
    if forced > 0:
        said.append(f"a batch of {batch} sequences is taken to need {forced:.0%} more tokens (arXiv:1812.06162)")
    candidate = Candidate(
        strategy=at.strategy,
        variant=f"{variant}, {at.label}" if at.label else variant,
        layout=layout,
        shares=tuple(
            ClassShare(
                node_class=c.name,
                num_nodes=c.num_nodes,
                devices_per_node=c.devices_per_node,
                micro_batch_size=s.micro_batch_size,
                gradient_accumulation_steps=s.gradient_accumulation_steps,
                batch_per_device=s.batch_per_device,
                memory=m,
                compute_seconds=0.0,
            )
            for c, s, m in zip(at.cluster.classes, shares, memories, strict=True)
        ),
        time=_UNTIMED,
        global_batch_size=batch,
        extra_steps_fraction=(1 + extra_steps[0]) * (1 + forced) - 1,
        feasible=not reason,
        infeasible_reason=reason,
        shortfall_bytes=missing,
        settings={"compression": compression, **(settings or {})},
        notes=tuple(said),
    )
    return timed(candidate, at.cluster, at.workload)


def timed(candidate: Candidate, part: Cluster, workload: Workload) -> Candidate:
    """Return the candidate with its times on the classes of ``part``, which are those of its shares, in their order."""
    work = class_work(candidate, part)
    time = estimate_step(
        workload.model,
        candidate.layout,
        part,
        work,
        compression=str(candidate.settings.get("compression", "none")),
        strategy=candidate.strategy,
    )
    start = _lockstep_start(candidate, part, work, time, workload)
    time = with_frozen_time(time, workload)
    time = with_borrowed_ratio(time, part, candidate.strategy)
    if len(work) == 1:
        seconds = [sum(time.terms_seconds.get(term, 0.0) for term in _COMPUTE_TERMS)]
    else:
        seconds = [class_seconds(workload, candidate.layout, w) for w in work]
    steps = run_steps(workload, candidate.global_batch_size) * (1 + candidate.extra_steps_fraction)
    return replace(
        candidate,
        time=time,
        shares=tuple(replace(s, compute_seconds=t) for s, t in zip(candidate.shares, seconds, strict=True)),
        run_seconds=time.step_seconds.scaled(steps * start),
    )


def _lockstep_start(
    candidate: Candidate, part: Cluster, work: tuple[ClassWork, ...], time: TimeEstimate, workload: Workload
) -> float:
    """Return how much longer a run gets by its first steps, in which replicas still exchange every step."""
    share = float(candidate.settings.get("sync_warmup_fraction", 0.0))
    layout = candidate.layout
    if layout.engine != "local" or share <= 0 or layout.sync_interval_steps <= 1:
        return 1.0
    lockstep = estimate_step(
        workload.model,
        replace(layout, sync_interval_steps=1, exchange_delay_steps=0),
        part,
        work,
        compression=str(candidate.settings.get("compression", "none")),
        strategy=candidate.strategy,
    )
    return 1 + share * (lockstep.step_seconds.likely / time.step_seconds.likely - 1)


def class_work(candidate: Candidate, part: Cluster) -> tuple[ClassWork, ...]:
    """Return what the cost formulas take of a candidate's shares."""
    return tuple(
        ClassWork(
            node_class=c,
            micro_batch_size=s.micro_batch_size,
            gradient_accumulation_steps=s.gradient_accumulation_steps,
            batch_per_device=s.batch_per_device,
        )
        for c, s in zip(part.classes, candidate.shares, strict=True)
    )


def class_seconds(workload: Workload, layout: Layout, work: ClassWork) -> float:
    """Return the time of one class's own work in a step."""
    full, rest = divmod(work.batch_per_device, work.micro_batch_size)
    sizes = ((work.micro_batch_size, full), (rest, 1 if rest else 0))
    return sum(
        times * micro_batch_seconds(workload.model, layout, work.node_class.device, size).total_seconds
        for size, times in sizes
        if times
    )


def run_steps(workload: Workload, global_batch_size: int) -> int:
    """Return the optimizer steps of the run, without what an inexact method needs on top."""
    return max(1, math.ceil(run_tokens(workload) / (global_batch_size * workload.sequence_length)))


def explore(at: Site, layouts: Iterable[Layout], batch_per_device: int, **build_options: Any) -> Iterator[Candidate]:
    """Yield every micro-batch of every layout that fits, on devices that share the batch equally.

    A layout whose smallest micro-batch does not fit is yielded once, with the number that kills it. More sequences
    need more memory, so the search stops at the first that does not fit.
    """
    for layout in layouts:
        for position, micro in enumerate(micro_batches(batch_per_device)):
            share = Share(micro, batch_per_device // micro, batch_per_device)
            shared = with_share(layout, share)
            memories = tuple(memory_of(at, shared, c, share) for c in at.cluster.classes)
            if position and not (at.memory_known and _all_fit(at, shared, memories)):
                break
            candidate = build(
                at,
                shared,
                (share,) * len(at.cluster.classes),
                variant=describe(shared, share),
                memories=memories,
                **build_options,
            )
            yield candidate
            if not candidate.feasible:
                break


def _all_fit(at: Site, layout: Layout, memories: tuple[MemoryEstimate, ...]) -> bool:
    return not any(shortage(c, m, layout)[1] for c, m in zip(at.cluster.classes, memories, strict=True))


def describe(layout: Layout, share: Share) -> str:
    """Return the variant's text: "micro-batch 4 x 8 steps, full checkpointing, bf16"."""
    steps = share.gradient_accumulation_steps
    degrees = _degrees(layout)
    parts = [degrees] if degrees else []
    parts += [f"micro-batch {share.micro_batch_size}" + (f" x {steps} steps" if steps > 1 else "")]
    if layout.activation_checkpointing != "none":
        parts.append(f"{layout.activation_checkpointing} checkpointing")
    parts.append(layout.precision)
    return ", ".join(parts)


def _degrees(layout: Layout) -> str:
    """Return how layers are divided: "tensor 4 x pipeline 2 (3 chunks) x data 16"; empty where they are whole."""
    if layout.model_parallel_degree == 1 and layout.expert_parallel_degree == 1:
        return ""
    chunks = f" ({layout.virtual_pipeline_chunks} chunks)" if layout.virtual_pipeline_chunks > 1 else ""
    named = (
        ("tensor", layout.tensor_parallel_degree, ""),
        ("pipeline", layout.pipeline_parallel_degree, chunks),
        ("context", layout.context_parallel_degree, ""),
        ("data", layout.data_parallel_degree, ""),
    )
    product = " x ".join(f"{name} {degree}{more}" for name, degree, more in named if degree > 1)
    expert = layout.expert_parallel_degree
    return product + (f" with experts over {expert}" if expert > 1 else "")


def with_checkpointing(at: Site, layout: Layout) -> tuple[Layout, ...]:
    """Return the layout with no, selective and full activation checkpointing; a module knows no layers to recompute."""
    if not at.workload.model.is_transformer:
        return (layout,)
    return tuple(replace(layout, activation_checkpointing=mode) for mode in CHECKPOINTING)
