"""Several clusters side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratadvisor.report.console import console, heading, wrapped
from stratadvisor.report.format import energy
from stratadvisor.schema.plan import Plan
from stratadvisor.units import format_count, format_seconds


class Named(Protocol):
    """A cluster's name and its plan, or the reason for having none."""

    @property
    def name(self) -> str:
        """How the cluster is called."""

    @property
    def plan(self) -> Plan | None:
        """Its plan."""

    @property
    def reason(self) -> str:
        """Why there is none."""


def show_comparison(entries: Sequence[Named]) -> None:
    """Print one block for each cluster, each against the first that has a plan."""
    out = console()
    base = next((e.plan for e in entries if e.plan is not None), None)
    for entry in entries:
        out.print(heading(entry.name))
        plan = entry.plan
        if plan is None or base is None:
            wrapped(out, f"no plan: {entry.reason}", style="yellow")
            continue
        predicted = plan.predicted
        wrapped(out, f"{plan.parallelism.world_size} devices, {plan.strategy}: {plan.variant}")
        run = predicted.run_seconds
        words = [
            f"run {format_seconds(run.likely)} ({format_seconds(run.low)} to {format_seconds(run.high)})",
            f"{format_count(predicted.tokens_per_second.likely)} tokens per second",
        ]
        if plan is not base:
            words.append(f"{run.likely / base.predicted.run_seconds.likely:.2f} x the time of the first")
        if predicted.energy_joules is not None:
            words.append(f"energy {energy(predicted.energy_joules.likely)}")
        if predicted.cost is not None:
            words.append(f"cost {predicted.cost.likely:,.0f}")
            if plan is not base and base.predicted.cost is not None:
                words[-1] += f" ({predicted.cost.likely / base.predicted.cost.likely:.2f} x)"
        wrapped(out, ", ".join(words))
