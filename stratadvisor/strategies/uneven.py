"""Shares by speed: what each class's devices do so that all finish together, and the variants of it that fit.

The gradient stays the mean over the global batch: the emitted program weights each rank's loss by its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.strategies.batches import MAX_MICRO_BATCH, Worker, accumulation_steps, solve_shares
from stratadvisor.strategies.common import build, describe
from stratadvisor.strategies.fit import fits
from stratadvisor.strategies.site import Share, Site

REFERENCE_MICRO_BATCH = 4
"""Speeds of classes are compared at this micro-batch, or at the mean share where that is smaller."""
WORTHWHILE_SPREAD = 1.05
"""Fastest over slowest class from which shares by speed differ from equal ones by more than noise."""


def sequences_per_second(at: Site, layout: Layout, batch: int) -> list[float]:
    """Return each class's predicted speed per device on its own work."""
    mean = max(1, batch // at.cluster.num_devices)
    size = min(REFERENCE_MICRO_BATCH, mean)
    return [
        size / micro_batch_seconds(at.workload.model, layout, c.device, size).total_seconds for c in at.cluster.classes
    ]


def wants_unequal_shares(at: Site, layout: Layout, batch: int) -> bool:
    """Whether classes differ enough in speed for unequal shares, or cannot share the batch equally at all."""
    if len(at.cluster.classes) < 2:
        return False
    if batch % at.cluster.num_devices:
        return True
    speeds = sequences_per_second(at, layout, batch)
    return max(speeds) >= WORTHWHILE_SPREAD * min(speeds)


def explore_replicas(at: Site, layouts: tuple[Layout, ...], batch: int, **options: Any) -> Iterator[Candidate]:
    """Yield variants in which every device holds a replica and accumulates as often as its own share needs."""
    classes = at.cluster.classes
    speeds = sequences_per_second(at, layouts[0], batch)
    workers = [Worker(count=c.num_devices, sequences_per_second=v) for c, v in zip(classes, speeds, strict=True)]
    split = solve_shares(batch, workers)
    if split is None:
        return
    for layout in layouts:
        largest = [largest_micro_batch(at, layout, c, b) for c, b in zip(classes, split, strict=True)]
        seen: set[tuple[Share, ...]] = set()
        level = 1
        while level == 1 or (level <= MAX_MICRO_BATCH and level < 2 * max(split)):
            shares = tuple(_share(b, min(level, max(1, most))) for b, most in zip(split, largest, strict=True))
            if shares not in seen:
                seen.add(shares)
                found = build(at, layout, shares, variant=_describe(layout, shares, classes), **options)
                yield found
                if not found.feasible:
                    break
            level *= 2


def explore_lockstep(at: Site, layouts: tuple[Layout, ...], batch: int, **options: Any) -> Iterator[Candidate]:
    """Yield variants in which all devices do the same number of micro-batches, of sizes by speed.

    Sharded engines exchange in every micro-batch, so its size is where shares can differ; a class whose memory caps it
    hands sequences over to the others.
    """
    classes = at.cluster.classes
    speeds = sequences_per_second(at, layouts[0], batch)
    free = solve_shares(
        batch, [Worker(count=c.num_devices, sequences_per_second=v) for c, v in zip(classes, speeds, strict=True)]
    )
    if free is None:
        return
    for layout in layouts:
        most = [largest_micro_batch(at, layout, c, MAX_MICRO_BATCH) for c in classes]
        found: Candidate | None = None
        for steps in reversed(accumulation_steps(min(free))):
            split = solve_shares(
                batch,
                [
                    Worker(count=c.num_devices, sequences_per_second=v, cap=steps * max(1, m))
                    for c, v, m in zip(classes, speeds, most, strict=True)
                ],
            )
            if split is None or min(split) < steps:
                continue
            shares = tuple(Share(-(-b // steps), steps, b) for b in split)
            found = build(at, layout, shares, variant=_describe(layout, shares, classes), **options)
            yield found
            if not found.feasible:
                break  # with fewer steps the micro-batches only grow
        if found is None:  # the caps leave no share for somebody: show what it lacks
            steps = min(free)
            shares = tuple(Share(-(-b // steps), steps, b) for b in free)
            yield build(at, layout, shares, variant=_describe(layout, shares, classes), **options)


def largest_micro_batch(at: Site, layout: Layout, node_class: NodeClass, batch_per_device: int) -> int:
    """Return the largest power of two, up to the share, that fits a class; 0 when not even one sequence does."""
    if node_class.device.usable_memory_bytes is None:
        return 1
    size = 0
    while True:
        larger = max(1, size * 2)
        if larger > min(2 * batch_per_device - 1, MAX_MICRO_BATCH):
            return size
        if not fits(at, layout, node_class, Share(larger, 1, larger)):
            return size
        size = larger


def _share(batch: int, micro: int) -> Share:
    """Return a share cut into as few and as equal micro-batches of at most ``micro`` as possible."""
    steps = -(-batch // micro)
    return Share(-(-batch // steps), steps, batch)


def _describe(layout: Layout, shares: tuple[Share, ...], classes: tuple[NodeClass, ...]) -> str:
    parts = ", ".join(f"{s.batch_per_device} on {c.device.name}" for s, c in zip(shares, classes, strict=True))
    common = describe(layout, shares[0])
    return f"shares {parts}; {common}"
