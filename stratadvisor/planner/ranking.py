"""One scale for all candidates: predicted time, device hours or energy to the target. Simpler wins a near tie."""

from __future__ import annotations

from collections.abc import Iterable

from stratadvisor.costs.energy import step_energy_joules
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Objective
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.common import class_work
from stratadvisor.strategies.selections import part_used
from stratadvisor.strategies.worth import brings_library, is_other_program, needed_share

OTHER_PROGRAM = 3
"""The ``complexity`` of another training program."""
INEXACT_FAMILIES = ("hierarchical", "local_sgd", "asynchronous", "federated")
MIXING_GAIN = 0.03
"""Mixing node classes must beat what one class does alone by this share; our choice."""
MARGINAL_SHARE = 0.95
MARGINAL_GAIN = 0.05
"""A predicted peak above the first share of what is free is marginal, and must gain the second; our choice."""
TIE = 0.02
"""Predictions closer than this are equal; the simpler, smaller candidate then wins."""
_STRATEGY_ORDER = {name: position for position, name in enumerate(STRATEGIES)}
_CHECKPOINTING_ORDER = {"none": 0, "selective": 1, "full": 2}
ASSUMED_DEVICE_WATTS = {"cpu": 150.0}
OTHER_DEVICE_WATTS = 300.0
"""Power of a device whose limit nobody states, only to rank by energy."""


def value(candidate: Candidate, cluster: Cluster, objective: Objective) -> float:
    """Return what the objective minimises: seconds, device seconds or joules to the target."""
    seconds = candidate.run_seconds.likely
    if objective == "time":
        return seconds
    if objective == "cost":
        return seconds * candidate.num_devices
    part = part_used(cluster, candidate.shares)
    step = step_energy_joules(candidate.time, class_work(candidate, part))
    if step is not None:
        return step.likely * seconds / candidate.time.step_seconds.likely
    watts = sum(
        c.num_devices * (c.device.power_watts or ASSUMED_DEVICE_WATTS.get(c.device.kind, OTHER_DEVICE_WATTS))
        for c in part.classes
    )
    return seconds * watts


def offloads(candidate: Candidate) -> bool:
    """Whether host memory takes part."""
    return candidate.layout.optimizer_offload != "none" or candidate.layout.parameter_offload != "none"


def complexity(candidate: Candidate) -> int:
    """Return how much a candidate asks of its user.

    0 for whole replicas, 1 for divided states, 2 for divided layers, 3 for another training program, 4 for methods that
    are not exact, 5 for offload.
    """
    if offloads(candidate):
        return 5
    if STRATEGIES[candidate.strategy].family in INEXACT_FAMILIES:
        return 4
    if is_other_program(candidate):
        return OTHER_PROGRAM
    if candidate.layout.model_parallel_degree > 1:
        return 2
    return 0 if candidate.layout.sharding == "none" else 1


def memory_known(candidate: Candidate, cluster: Cluster) -> bool:
    """Whether the memory of every device it uses is known, and that of the hosts where it offloads."""
    needs_host = offloads(candidate)
    known = {
        c.name: c.device.usable_memory_bytes is not None and not (needs_host and c.host_memory_bytes is None)
        for c in cluster.classes
    }
    return all(known[s.node_class] for s in candidate.shares)


def best(candidates: Iterable[Candidate], cluster: Cluster, objective: Objective) -> Candidate | None:
    """Return the best feasible candidate; None when there is none.

    Those whose fit nobody can check come last. More complexity has to pay (``strategies.worth``).
    """
    feasible = [c for c in candidates if c.feasible]
    checked = [c for c in feasible if memory_known(c, cluster)]
    chosen: Candidate | None = None
    rungs: dict[tuple[int, bool], list[Candidate]] = {}
    for candidate in checked or feasible:
        rungs.setdefault((complexity(candidate), brings_library(candidate)), []).append(candidate)
    for _, tier in sorted(rungs.items()):
        found = _uniform_or_mixed(tier, cluster, objective)
        if found is None:
            continue
        if chosen is None:
            chosen = found
            continue
        if value(found, cluster, objective) < needed_share(found, chosen) * value(chosen, cluster, objective):
            chosen = found
    return chosen


def _uniform_or_mixed(tier: list[Candidate], cluster: Cluster, objective: Objective) -> Candidate | None:
    uniform = _smallest([c for c in tier if len(c.shares) == 1], cluster, objective)
    mixed = _smallest([c for c in tier if len(c.shares) > 1], cluster, objective)
    if uniform is None or mixed is None:
        return uniform or mixed
    pays = value(mixed, cluster, objective) < (1 - MIXING_GAIN) * value(uniform, cluster, objective)
    return mixed if pays else uniform


def marginal(candidate: Candidate, cluster: Cluster) -> bool:
    """Whether some device is predicted to be full to the last twentieth."""
    free = {c.name: c.device.usable_memory_bytes for c in cluster.classes}
    return any(
        s.memory.peak_bytes.high > MARGINAL_SHARE * (free[s.node_class] or float("inf")) for s in candidate.shares
    )


def _smallest(tier: list[Candidate], cluster: Cluster, objective: Objective) -> Candidate | None:
    if not tier:
        return None
    values = [value(c, cluster, objective) * (1 + MARGINAL_GAIN if marginal(c, cluster) else 1.0) for c in tier]
    limit = min(values) * (1 + TIE)
    near = [(c, v) for c, v in zip(tier, values, strict=True) if v <= limit]
    return min(near, key=lambda pair: _simplicity(pair[0], pair[1]))[0]


def _simplicity(candidate: Candidate, predicted: float) -> tuple[float, ...]:
    return (
        candidate.num_devices,
        _STRATEGY_ORDER[candidate.strategy],
        _CHECKPOINTING_ORDER[candidate.layout.activation_checkpointing],
        candidate.memory.peak_bytes.likely,
        predicted,
    )


def closest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the infeasible candidate that lacks least; one that fails for another reason only when all do."""
    return min(
        (c for c in candidates if not c.feasible),
        key=lambda c: (c.shortfall_bytes <= 0, c.shortfall_bytes, c.run_seconds.likely),
        default=None,
    )
