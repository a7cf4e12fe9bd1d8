"""Which fact would change the choice: a rate at which another strategy wins, memory for a simpler one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratadvisor.planner import ranking, recost
from stratadvisor.planner.memory_flip import host_flip, memory_flip
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Flip
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.local import at_intervals
from stratadvisor.strategies.selections import part_used
from stratadvisor.units import format_rate

LARGEST_SCALE = 512.0
"""Rates are tried from 1/512 to 512 times the present one."""
STEP = 2.0
REFINEMENTS = 5
"""Bisections between two steps: the threshold is then within 2 ** (1 / 2 ** 5), about 2 %."""
TRIED_PER_GROUP = 8
ANCHORS = (1 / 64, 1 / 3, 1.0, 3.0, 64.0)

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
    inter = cluster.inter_node_bytes_per_second
    if cluster.num_nodes > 1 and inter is not None:
        found += _rate_flips("bandwidth between nodes", inter, _scale_between, chosen, candidates, cluster, workload)
    inside = [c.intra_node_bytes_per_second for c in part.classes if c.devices_per_node > 1]
    known = [rate for rate in inside if rate is not None]
    if cluster.num_nodes == 1 and known and len(known) == len(inside):
        found += _rate_flips(
            "bandwidth inside a node", min(known), _scale_inside, chosen, candidates, cluster, workload
        )
    memory = memory_flip(chosen, cluster, workload, keeps), host_flip(chosen, candidates, cluster, workload)
    return (*found, *(flip for flip in memory if flip is not None))


def _rivals(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload, scaled: Scaled
) -> list[Candidate]:
    """Return a few candidates of each strategy, on one node and on several: the best at several rates.

    Which micro-batch or interval is right depends on the rate. Strategies outside the family that are better already
    are left out: no rate makes them win.
    """
    objective = workload.objective
    feasible = [c for c in candidates if c.feasible]
    now = ranking.value(chosen, cluster, objective)
    leader = ranking.best(feasible, cluster, objective)
    if leader is not None and leader.strategy != chosen.strategy:
        better = {c.strategy for c in feasible if ranking.value(c, cluster, objective) < now} - {chosen.strategy}
        feasible = [c for c in feasible if c.strategy not in better]
    groups: dict[tuple[str, bool], list[Candidate]] = {}
    for candidate in sorted(feasible, key=lambda c: ranking.value(c, cluster, objective)):
        group = groups.setdefault((candidate.strategy, sum(s.num_nodes for s in candidate.shares) > 1), [])
        if len(group) < TRIED_PER_GROUP:
            group.append(candidate)
    kept: dict[int, Candidate] = {}
    costs = _Costs(workload, scaled)
    for anchor in ANCHORS:
        other = cluster if anchor == 1.0 else scaled(cluster, anchor)
        for group in groups.values():
            there = group if anchor == 1.0 else [costs.on(c, other) for c in group]
            best = ranking.best(there, other, objective)
            kept |= {id(c): c for c, costed in zip(group, there, strict=True) if costed is best}
    return [copy for c in kept.values() for copy in (c, *at_intervals(c))]


class _Costs:
    """Candidates on clusters whose rates differ; those on one node ask nothing of the network between nodes."""

    def __init__(self, workload: Workload, scaled: Scaled) -> None:
        self._workload = workload
        self._between = scaled is _scale_between
        self._known: dict[int, tuple[Candidate, Candidate]] = {}

    def on(self, candidate: Candidate, cluster: Cluster) -> Candidate:
        if not self._between or sum(s.num_nodes for s in candidate.shares) > 1:
            return recost.on(candidate, cluster, self._workload)
        found = self._known.get(id(candidate))
        if found is None:
            found = self._known[id(candidate)] = candidate, recost.on(candidate, cluster, self._workload)
        return found[1]


def _rate_flips(
    fact: str,
    rate: float,
    scaled: Scaled,
    chosen: Candidate,
    candidates: tuple[Candidate, ...],
    cluster: Cluster,
    workload: Workload,
) -> list[Flip]:
    """Return the nearest lower and the nearest higher rate at which another strategy wins."""
    rivals = _rivals(chosen, candidates, cluster, workload, scaled)

    costs = _Costs(workload, scaled)

    def winner(scale: float) -> str:
        other = scaled(cluster, scale)
        costed = [costs.on(c, other) for c in (chosen, *rivals)]
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
