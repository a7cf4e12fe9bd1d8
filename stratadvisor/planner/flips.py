"""Which fact would change the choice: a rate at which another strategy wins, memory for a simpler one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratadvisor.planner import ranking, recost
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Flip
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.selections import part_used
from stratadvisor.units import format_bytes, format_rate

LARGEST_SCALE = 1024.0
"""Rates are tried from 1/1024 to 1024 times the present one."""
STEP = 4.0
REFINEMENTS = 6
"""Bisections between two steps: the threshold is then within 4 ** (1 / 2 ** 6), about 2 %."""
KEPT_PER_STRATEGY = 2
MOST_MEMORY = 4.0
"""Needs beyond this many times the present memory are no hint worth giving: no such device exists."""

Scaled = Callable[[Cluster, float], Cluster]


def flips(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload
) -> tuple[Flip, ...]:
    """Return what would change the answer; ``candidates`` keep to the rules, whichever family they belong to."""
    found: list[Flip] = []
    part = part_used(cluster, chosen.shares)
    rivals = _rivals(chosen, candidates, cluster, workload)
    inter = cluster.inter_node_bytes_per_second
    if cluster.num_nodes > 1 and inter is not None:
        found += _rate_flips("bandwidth between nodes", inter, _scale_between, chosen, rivals, cluster, workload)
    inside = [c.intra_node_bytes_per_second for c in part.classes if c.devices_per_node > 1]
    known = [rate for rate in inside if rate is not None]
    if cluster.num_nodes == 1 and known and len(known) == len(inside):
        found += _rate_flips("bandwidth inside a node", min(known), _scale_inside, chosen, rivals, cluster, workload)
    memory = _memory_flip(chosen, candidates, cluster, workload)
    return (*found, *([memory] if memory is not None else []))


def _rivals(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload
) -> list[Candidate]:
    """Return a few candidates of each strategy that are not better than the choice already.

    Of those that meet at intervals, the best of each interval: on another network another interval is the right one.
    """
    now = ranking.value(chosen, cluster, workload.objective)
    groups: dict[tuple[str, int], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.feasible:
            groups.setdefault((candidate.strategy, candidate.layout.sync_interval_steps), []).append(candidate)
    kept: list[Candidate] = []
    already_better = {
        name
        for (name, _), group in groups.items()
        if name != chosen.strategy and min(ranking.value(c, cluster, workload.objective) for c in group) < now
    }
    for (name, _), group in groups.items():
        if name not in already_better:
            group.sort(key=lambda c: ranking.value(c, cluster, workload.objective))
            kept += group[:KEPT_PER_STRATEGY]
    return kept


def _rate_flips(
    fact: str,
    rate: float,
    scaled: Scaled,
    chosen: Candidate,
    rivals: list[Candidate],
    cluster: Cluster,
    workload: Workload,
) -> list[Flip]:
    """Return the nearest lower and the nearest higher rate at which another strategy wins."""

    def winner(scale: float) -> str:
        other = scaled(cluster, scale)
        costed = [recost.on(c, other, workload) for c in (chosen, *rivals)]
        best = ranking.best(costed, other, workload.objective)
        return chosen.strategy if best is None else best.strategy

    if winner(1.0) != chosen.strategy:
        return []
    found: list[Flip] = []
    for factor, sign in ((1 / STEP, "<="), (STEP, ">=")):
        scale = 1.0
        while 1 / LARGEST_SCALE <= scale * factor <= LARGEST_SCALE:
            near, scale = scale, scale * factor
            then = winner(scale)
            if then == chosen.strategy:
                continue
            far = scale
            for _ in range(REFINEMENTS):
                middle = (near * far) ** 0.5
                between = winner(middle)
                if between == chosen.strategy:
                    near = middle
                else:
                    far, then = middle, between
            found.append(
                Flip(fact=fact, now=format_rate(rate), threshold=f"{sign} {format_rate(rate * far)}", then=then)
            )
            break
    return found


def _scale_between(cluster: Cluster, scale: float) -> Cluster:
    rate = cluster.inter_node_bytes_per_second
    return replace(
        cluster,
        inter_node_bytes_per_second=None if rate is None else rate * scale,
        inter_node_sweep=tuple((size, seconds / scale) for size, seconds in cluster.inter_node_sweep),
        classes=tuple(
            c
            if c.network_bytes_per_second is None
            else replace(c, network_bytes_per_second=c.network_bytes_per_second * scale)
            for c in cluster.classes
        ),
    )


def _scale_inside(cluster: Cluster, scale: float) -> Cluster:
    return replace(
        cluster,
        intra_node_sweep=tuple((size, seconds / scale) for size, seconds in cluster.intra_node_sweep),
        classes=tuple(
            c
            if c.intra_node_bytes_per_second is None
            else replace(c, intra_node_bytes_per_second=c.intra_node_bytes_per_second * scale)
            for c in cluster.classes
        ),
    )


def _memory_flip(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload
) -> Flip | None:
    """Return how much free memory would let a simpler candidate fit that would then be chosen."""
    level = ranking.complexity(chosen)
    now = ranking.value(chosen, cluster, workload.objective)
    best: tuple[float, Candidate, str, float] | None = None
    for candidate in candidates:
        if candidate.feasible or candidate.shortfall_bytes <= 0 or ranking.complexity(candidate) >= level:
            continue
        gain = (1 - ranking.SIMPLICITY_GAIN) ** (level - ranking.complexity(candidate))
        if now < gain * ranking.value(candidate, cluster, workload.objective):
            continue  # it would not be chosen even if it fitted
        short = [s for s in _short(candidate, cluster) if s[0] <= MOST_MEMORY * s[2]]
        if len(short) == 1 == len(_short(candidate, cluster)) and (best is None or short[0][0] < best[0]):
            needed, name, available = short[0]
            best = (needed, candidate, name, available)
    if best is None:
        return None
    needed, candidate, name, available = best
    return Flip(
        fact=f"free memory of {name}",
        now=format_bytes(available),
        threshold=f">= {format_bytes(needed)}",
        then=candidate.strategy,
    )


def _short(candidate: Candidate, cluster: Cluster) -> list[tuple[float, str, float]]:
    """Return (needed, device, available) of each class whose device memory does not suffice."""
    devices = {c.name: c.device for c in cluster.classes}
    found: list[tuple[float, str, float]] = []
    for share in candidate.shares:
        device = devices[share.node_class]
        available, needed = device.usable_memory_bytes, share.memory.peak_bytes.high
        if available is not None and needed > available:
            found.append((needed, device.name, available))
    return found
