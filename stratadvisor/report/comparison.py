"""Several clusters side by side."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from stratadvisor.report.console import console, heading, wrapped
from stratadvisor.report.format import energy
from stratadvisor.schema.comparison import ComparedCluster, Comparison
from stratadvisor.schema.plan import Interval, Prediction
from stratadvisor.units import format_count, format_seconds

ROW = "    {:<8}{:<6}{:<20}{:<9}{:<10}{:<6}{:<10}{:<5}"
UNKNOWN = "unknown"
TABLE_WIDTH = 79
"""Below this the same stands in a sentence."""


def show_comparison(found: Comparison) -> None:
    """Print a table of two lines for each cluster; a figure's ratio to the first cluster's stands behind it."""
    out = console()
    base = next((e.plan.predicted for e in found.clusters if e.plan is not None), None)
    if out.width >= TABLE_WIDTH:
        titles = ROW.format("run", "x", "90 % range", "tokens/s", "energy", "x", "cost", "x")
        out.print(Text(titles.rstrip(), style="bold"))
    for entry in found.clusters:
        if not entry.what_if:
            _entry(out, entry, base)
    if any(e.what_if for e in found.clusters):
        out.print(heading("what a little more of the first would buy"))
    for entry in found.clusters:
        if entry.what_if:
            _entry(out, entry, base)


def _entry(out: Console, entry: ComparedCluster, base: Prediction | None) -> None:
    if entry.plan is None or base is None:
        wrapped(out, f"{entry.name}: no plan: {entry.reason}", style="yellow")
        return
    plan, p = entry.plan, entry.plan.predicted
    wrapped(out, f"{entry.name}: {plan.parallelism.world_size} devices, {plan.strategy}, {plan.variant}")
    cells = (
        format_seconds(p.run_seconds.likely),
        ratio(p.run_seconds, base.run_seconds),
        f"{format_seconds(p.run_seconds.low)} .. {format_seconds(p.run_seconds.high)}",
        format_count(p.tokens_per_second.likely),
        UNKNOWN if p.energy_joules is None else energy(p.energy_joules.likely),
        ratio(p.energy_joules, base.energy_joules),
        "no price" if p.cost is None else f"{p.cost.likely:,.0f}",
        ratio(p.cost, base.cost),
    )
    if out.width >= TABLE_WIDTH:
        out.print(Text(ROW.format(*cells).rstrip()))
        return
    run, times, band, rate, power, more, money, dearer = cells
    said = [f"run {run} ({band}), x {times}", f"{rate} tokens/s", f"energy {power}" + (f", x {more}" if more else "")]
    said.append(f"cost {money}" + (f", x {dearer}" if dearer else ""))
    wrapped(out, "; ".join(said), indent=4)


def ratio(value: Interval | None, first: Interval | None) -> str:
    """Return a figure over the first cluster's, nothing where one of them is unknown."""
    if value is None or first is None or first.likely <= 0:
        return ""
    return f"{value.likely / first.likely:.2f}"
