"""Which fact would change the choice: a rate at which another strategy wins, memory for a simpler one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratadvisor.planner import ranking, recost
from stratadvisor.planner.memory_flip import memory_flip
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Flip
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.local import at_intervals
from stratadvisor.strategies.selections import part_used
from stratadvisor.units import format_rate

LARGEST_SCALE = 1024.0
"""Rates are tried from 1/1024 to 1024 times the present one."""
STEP = 4.0
REFINEMENTS = 6
"""Bisections between two steps: the threshold is then within 4 ** (1 / 2 ** 6), about 2 %."""
KEPT_PER_GROUP = 2

Scaled = Callable[[Cluster, float], Cluster]


def flips(
    chosen: Candidate,
    candidates: tuple[Candidate, ...],
    cluster: Cluster,
    workload: Workload,
    keeps: Callable[[Candidate], bool],
) -> tuple[Flip, ...]:
    """Return what would change the answer.

    ``candidates`` keep to the rules, whichever family they belong to; ``keeps`` says so of further ones.
    """
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
    memory = memory_flip(chosen, cluster, workload, keeps)
    return (*found, *([memory] if memory is not None else []))


def _rivals(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload
) -> list[Candidate]:
    """Return a few candidates of each strategy that are not better than the choice already.

    The best on one node and on several, and at several intervals between exchanges: what is right depends on the rate.
    """
    objective = workload.objective
    now = ranking.value(chosen, cluster, objective)
    groups: dict[tuple[str, bool], list[Candidate]] = {}
    for candidate in candidates:
        if candidate.feasible:
            several = sum(s.num_nodes for s in candidate.shares) > 1
            groups.setdefault((candidate.strategy, several), []).append(candidate)
    leader = ranking.best(candidates, cluster, objective)
    better: set[str] = set()
    if leader is not None and leader.strategy != chosen.strategy:  # outside the family: no flip makes them better
        better = {c.strategy for c in candidates if c.feasible and ranking.value(c, cluster, objective) < now}
    kept: list[Candidate] = []
    for (name, _), group in groups.items():
        if name == chosen.strategy or name not in better:
            group.sort(key=lambda c: ranking.value(c, cluster, objective))
            kept += group[:KEPT_PER_GROUP]
            kept += at_intervals(group[0])
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
