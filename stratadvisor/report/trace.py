"""The path through the flowchart, clause by clause, and why not another strategy."""

from __future__ import annotations

from stratadvisor.errors import UsageError
from stratadvisor.report.console import console, heading, wrapped
from stratadvisor.report.format import interval
from stratadvisor.schema.plan import ClauseResult, Plan
from stratadvisor.units import format_seconds


def clause_text(clause: ClauseResult) -> str:
    """Return ``cluster.speed_spread <= 1.1: 1.02 (measured)``."""
    actual = clause.actual_text or str(clause.actual)
    if clause.actual is None:
        return f"{clause.fact} {clause.operator} {clause.expected}: unknown"
    return f"{clause.fact} {clause.operator} {clause.expected}: is {actual} ({clause.origin})"


def show_trace(plan: Plan) -> None:
    """Print every question with the branch taken, its clauses, what was passed over and what it set."""
    out = console()
    for number, decision in enumerate(plan.decisions, 1):
        out.print(heading(f"{number}. {decision.ask}"))
        wrapped(out, f"{decision.branch} {decision.name}: {decision.because}")
        for clause in decision.clauses:
            mark = {True: "yes", False: "no", None: "?"}[clause.outcome]
            wrapped(out, f"{mark:>3}  {clause_text(clause)}", indent=4, hang=5)
        for line in decision.passed_over:
            wrapped(out, f"passed over  {line}", indent=4, hang=5)
        if decision.sets:
            wrapped(out, "sets  " + ", ".join(f"{k} = {v}" for k, v in sorted(decision.sets.items())), indent=4)
        for source in decision.sources:
            wrapped(out, f"source  {source}", indent=4)
    out.print(heading(f"then the planner chose {plan.strategy}: {plan.variant}"))


def show_why_not(plan: Plan, strategy: str) -> None:
    """Print why a strategy was not chosen.

    Raises:
        UsageError: the plan says nothing about such a strategy.

    """
    out = console()
    if strategy == plan.strategy:
        wrapped(out, f"{strategy} is the choice", indent=0)
        return
    found = [a for a in plan.alternatives if a.strategy == strategy]
    if not found:
        names = ", ".join(sorted({plan.strategy, *(a.strategy for a in plan.alternatives)}))
        raise UsageError(
            f"{strategy[:40]!r} was no candidate on this cluster (or is no strategy)", hint=f"candidates were {names}"
        )
    for other in found:
        out.print(heading(f"{other.strategy}: {other.variant}"))
        if other.run_seconds is not None:
            wrapped(out, f"whole run {interval(other.run_seconds, format_seconds)}")
        if other.relative_to_choice is not None:
            wrapped(out, f"{other.relative_to_choice:.2f} x the time to the target of {plan.strategy}")
        if other.reason:
            wrapped(out, other.reason)
        if not other.inside_family:
            wrapped(out, f"it is outside the family that the flowchart chose ({plan.family})")
    for flip in plan.flips:
        if flip.then == strategy:
            wrapped(out, f"would change: {flip.fact} is {flip.now}; at {flip.threshold}, {flip.then} wins")
