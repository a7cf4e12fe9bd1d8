"""The candidates beside the choice: the best of every other strategy, and the best on other devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stratadvisor.planner import ranking
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Alternative, Interval
from stratadvisor.schema.workload import Objective, Workload
from stratadvisor.strategies import STRATEGIES


def alternatives(
    chosen: Candidate,
    admitted: tuple[Candidate, ...],
    others: tuple[Candidate, ...],
    refused: tuple[tuple[Candidate, str], ...],
    cluster: Cluster,
    workload: Workload,
    *,
    inside: Callable[[Candidate], bool],
    finish: Callable[[Candidate], Candidate],
) -> tuple[Alternative, ...]:
    """Return what was passed over: those that fit by predicted time, then those that do not by what they lack.

    ``inside`` says whether the flowchart's family contains a candidate. ``finish`` applies to each what the choice gets
    once it is chosen (a compiled model), so that they compare.
    """
    broken = {id(c): reason for c, reason in refused}
    found: list[Candidate] = []
    everything = (*admitted, *others, *(c for c, _ in refused))
    for name in STRATEGIES:
        own = [c for c in everything if c.strategy == name]
        allowed = [c for c in own if id(c) not in broken]
        best = (
            ranking.best(allowed, cluster, workload.objective)
            or ranking.best(own, cluster, workload.objective)
            or ranking.closest(own)
        )
        if best is not None and name != chosen.strategy:
            found.append(best)
    elsewhere = _on_other_devices(chosen, (*admitted, *others), found, cluster, workload)
    if elsewhere is not None:
        found.append(elsewhere)
    found.sort(key=lambda c: (not c.feasible, c.run_seconds.likely if c.feasible else c.shortfall_bytes, c.strategy))
    final = finish(chosen)
    return tuple(
        _alternative(
            finish(c) if c.feasible else c,
            final,
            cluster,
            workload.objective,
            inside(c),
            broken.get(id(c), ""),
        )
        for c in found
    )


def _on_other_devices(
    chosen: Candidate,
    candidates: tuple[Candidate, ...],
    listed: Iterable[Candidate],
    cluster: Cluster,
    workload: Workload,
) -> Candidate | None:
    """Return the best candidate that uses other node classes than the choice and all that are listed already."""
    seen = {frozenset(s.node_class for s in c.shares) for c in (chosen, *(c for c in listed if c.feasible))}
    rest = [c for c in candidates if frozenset(s.node_class for s in c.shares) not in seen]
    return ranking.best(rest, cluster, workload.objective)


def _alternative(
    candidate: Candidate, chosen: Candidate, cluster: Cluster, objective: Objective, inside: bool, broken: str
) -> Alternative:
    run = candidate.run_seconds
    return Alternative(
        strategy=candidate.strategy,
        variant=candidate.variant,
        feasible=candidate.feasible,
        run_seconds=Interval(low=run.low, likely=run.likely, high=run.high) if candidate.feasible else None,
        relative_to_choice=run.likely / chosen.run_seconds.likely if candidate.feasible else None,
        reason=_reason(candidate, chosen, cluster, objective, inside, broken),
        inside_family=inside,
    )


def _reason(
    candidate: Candidate, chosen: Candidate, cluster: Cluster, objective: Objective, inside: bool, broken: str
) -> str:
    if not candidate.feasible:
        return candidate.infeasible_reason
    if broken:
        return broken
    said = _compared(candidate.run_seconds.likely / chosen.run_seconds.likely, "slower", "faster")
    ratio = ranking.value(candidate, cluster, objective) / ranking.value(chosen, cluster, objective)
    if objective != "time":
        what = {"cost": ("dearer", "cheaper"), "energy": ("more energy", "less energy")}[objective]
        said += f", {_compared(ratio, *what)}"
    if not ranking.memory_known(candidate, cluster) and ranking.memory_known(chosen, cluster):
        whose = "of the hosts" if ranking.offloads(candidate) else "of the devices"
        return f"predicted {said}, but the memory {whose} is unknown: whether it fits is open"
    if inside and ratio < 1 - ranking.TIE:
        return f"predicted {said}: too little for what it adds"
    return f"predicted {said}"


def _compared(ratio: float, more: str, less: str) -> str:
    if abs(ratio - 1) < ranking.TIE:
        return "nearly equal"
    if ratio >= 3:
        return f"{ratio:.3g} times as long" if more == "slower" else f"{ratio:.3g} times as much"
    return f"{abs(ratio - 1):.0%} {more if ratio > 1 else less}"
