"""Choose: what the flowchart allows, the best of it, and what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stratadvisor.planner import ranking, recost
from stratadvisor.planner.alternatives import alternatives
from stratadvisor.planner.build import build_plan
from stratadvisor.planner.flips import flips
from stratadvisor.planner.infeasible import no_plan
from stratadvisor.planner.request import COMPRESSIBLE, SIGN_COMPRESSIBLE, Request, in_family, objection, read_request
from stratadvisor.planner.search import enumerate_candidates
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Plan, Provenance
from stratadvisor.schema.rules import RuleOutcome
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.precision import choose_precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Candidates by what the flowchart says of them."""

    admitted: tuple[Candidate, ...]
    """In the family, no rule broken."""
    others: tuple[Candidate, ...]
    """No rule broken, outside the family."""
    refused: tuple[tuple[Candidate, str], ...]
    """Break a rule, and which."""


def choose(
    cluster: Cluster,
    workload: Workload,
    candidates: tuple[Candidate, ...],
    outcome: RuleOutcome,
    *,
    provenance: Provenance,
    assumptions: tuple[str, ...] = (),
) -> Plan:
    """Return the plan: the best candidate of the family that the flowchart chose, and all that explains it.

    Where nothing of that family fits, the best of all others is taken and a warning says so; where nothing fits that
    keeps to the rules, the rules give way, which a warning says as well.

    Raises:
        NoFeasiblePlanError: nothing fits at all.

    """
    request = read_request(outcome)
    picked = _choice(cluster, workload, candidates, request)
    chosen, groups, workload_used, warnings = picked.chosen, picked.groups, picked.workload, picked.warnings
    finish = partial(_compiled, cluster=cluster, workload=workload_used) if request.compile_model else _as_is
    return build_plan(
        finish(chosen),
        cluster,
        workload,
        request,
        outcome,
        alternatives=alternatives(
            chosen,
            groups.admitted,
            groups.others,
            groups.refused,
            cluster,
            workload,
            inside=lambda c: in_family(c, request.family),
            finish=finish,
        ),
        flips=flips(
            chosen,
            (*groups.admitted, *groups.others),
            cluster,
            workload_used,
            keeps=lambda c: not objection(c, request, c.layout.precision),
        ),
        warnings=(*outcome.warnings, *warnings, *_left_out(chosen, groups, cluster, workload)),
        assumptions=assumptions,
        provenance=provenance,
    )


def classes_chosen(
    cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...], outcome: RuleOutcome
) -> tuple[str, ...]:
    """Return the node classes that the plan of ``choose`` uses, without all that explains it.

    Raises:
        NoFeasiblePlanError: nothing fits at all.

    """
    return tuple(s.node_class for s in _choice(cluster, workload, candidates, read_request(outcome)).chosen.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    chosen: Candidate
    groups: Admission
    workload: Workload
    """With the precision that the rules ask for."""
    warnings: list[str]


def _choice(cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...], request: Request) -> _Choice:
    workload_used, candidates = _with_precision(cluster, workload, candidates, request)
    candidates = _with_compression(cluster, workload_used, candidates, request)
    groups = admission(cluster, workload, candidates, request)
    chosen, warnings = _pick(groups, cluster, workload, request)
    if chosen is None:
        raise no_plan(cluster, workload_used, candidates)
    return _Choice(chosen=chosen, groups=groups, workload=workload_used, warnings=warnings)


def _compiled(candidate: Candidate, cluster: Cluster, workload: Workload) -> Candidate:
    """Return the candidate with a compiled model, where the emitted program can compile: not under DeepSpeed."""
    if candidate.layout.engine == "deepspeed":
        return candidate
    return recost.compiled(candidate, cluster, workload)


def _as_is(candidate: Candidate) -> Candidate:
    return candidate


def admission(cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...], request: Request) -> Admission:
    """Return the candidates sorted by what the flowchart says of them."""
    usual, _ = choose_precision(cluster, workload)
    admitted: list[Candidate] = []
    others: list[Candidate] = []
    refused: list[tuple[Candidate, str]] = []
    for candidate in candidates:
        broken = objection(candidate, request, usual)
        if broken:
            refused.append((candidate, broken))
        elif in_family(candidate, request.family):
            admitted.append(candidate)
        else:
            others.append(candidate)
    return Admission(admitted=tuple(admitted), others=tuple(others), refused=tuple(refused))


def _pick(
    groups: Admission, cluster: Cluster, workload: Workload, request: Request
) -> tuple[Candidate | None, list[str]]:
    found = ranking.best(groups.admitted, cluster, workload.objective)
    if found is not None:
        return _or_part(found, groups.others, cluster, workload, request)
    family = (request.family or "any").replace("_", " ")
    lacking = ranking.closest(groups.admitted)
    why = f": {lacking.infeasible_reason}" if lacking is not None else ""
    found = ranking.best(groups.others, cluster, workload.objective)
    if found is not None:
        title = STRATEGIES[found.strategy].title
        return found, [f"the flowchart chose the family {family}, but nothing of it fits{why}; {title} does"]
    found = ranking.best([c for c, _ in groups.refused], cluster, workload.objective)
    if found is None:
        return None, []
    broken = next(reason for c, reason in groups.refused if c is found)
    return found, [f"{broken}, but nothing that keeps to it fits; {STRATEGIES[found.strategy].title} is taken instead"]


def _left_out(chosen: Candidate, groups: Admission, cluster: Cluster, workload: Workload) -> list[str]:
    """Return which devices the choice leaves idle, and what the best plan with all of them would take."""
    idle = cluster.num_devices - chosen.num_devices
    if idle == 0:
        return []
    known = (*groups.admitted, *groups.others, *(c for c, _ in groups.refused))
    whole = [c for c in known if c.num_devices == cluster.num_devices]
    best = ranking.best(whole, cluster, workload.objective)
    if best is None:
        batch = workload.global_batch_size
        if batch is not None and batch < cluster.num_devices:
            return [
                f"{idle} of {cluster.num_devices} devices are left out: {batch} sequences a step are fewer;"
                f" a global batch of {cluster.num_devices} uses all"
            ]
        return [f"{idle} of {cluster.num_devices} devices are left out: nothing that uses all of them fits"]
    ratio = ranking.value(best, cluster, workload.objective) / ranking.value(chosen, cluster, workload.objective)
    unit = {"time": "of the time", "cost": "of the device hours", "energy": "of the energy"}[workload.objective]
    title = STRATEGIES[best.strategy].title
    left = f"{idle} of {cluster.num_devices} devices are left out: with all of them, {title}"
    if abs(ratio - 1) < 0.005:
        return [f"{left} gains nothing that the prediction can tell"]
    return [f"{left} takes {ratio:.0%} {unit}"]


def _or_part(
    found: Candidate, others: tuple[Candidate, ...], cluster: Cluster, workload: Workload, request: Request
) -> tuple[Candidate, list[str]]:
    """Return the family's best, or an exact method on alike nodes alone where that is better.

    What made the flowchart leave exact averaging, slow or unequal nodes, is then no part of the job.
    """
    if request.family not in ranking.INEXACT_FAMILIES:
        return found, []
    alike = [c for c in others if _exact_part(c, cluster)]
    part = ranking.best(alike, cluster, workload.objective)
    if part is None:
        return found, []
    ratio = ranking.value(part, cluster, workload.objective) / ranking.value(found, cluster, workload.objective)
    if ratio > 1 - ranking.TIE:
        return found, []
    title = STRATEGIES[found.strategy].title
    what = {"time": "faster", "cost": "cheaper", "energy": "more sparing"}[workload.objective]
    return part, [
        f"the flowchart asks for {title} over all nodes; {part.variant} with {STRATEGIES[part.strategy].title} is"
        f" predicted {1 - ratio:.0%} {what}, exact, and taken instead"
    ]


def _exact_part(candidate: Candidate, cluster: Cluster) -> bool:
    exact = STRATEGIES[candidate.strategy].family in ("single", "synchronous")
    nodes = sum(s.num_nodes for s in candidate.shares)
    return exact and len(candidate.shares) == 1 and nodes < cluster.num_nodes


def _with_precision(
    cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...], request: Request
) -> tuple[Workload, tuple[Candidate, ...]]:
    """Enumerate again where the rules ask for a precision that no candidate has and the user left it open."""
    wanted = request.precision
    if wanted is None or workload.precision != "auto" or any(c.layout.precision == wanted for c in candidates):
        return workload, candidates
    asked = workload.model_copy(update={"precision": wanted})
    return asked, enumerate_candidates(cluster, asked)


def _with_compression(
    cluster: Cluster, workload: Workload, candidates: tuple[Candidate, ...], request: Request
) -> tuple[Candidate, ...]:
    if request.compression == "none":
        return candidates
    takes: tuple[str, ...] = COMPRESSIBLE
    if request.compression == "sign":  # one-bit gradients break Adam's estimate of the variance
        takes = SIGN_COMPRESSIBLE if workload.optimizer == "sgd" else ()
    return tuple(
        recost.compressed(c, cluster, workload, request.compression) if c.feasible and c.strategy in takes else c
        for c in candidates
    )
