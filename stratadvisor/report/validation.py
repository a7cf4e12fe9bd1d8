"""Predicted beside measured."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from stratadvisor.report.console import console, heading, safe, wrapped
from stratadvisor.report.format import measured_energy, percent
from stratadvisor.schema.plan import Interval
from stratadvisor.schema.validation import RunConfigOutcome, ValidationResult
from stratadvisor.units import format_bytes, format_count, format_seconds

TABLE_WIDTH = 80
"""Below this the rows are sentences."""
COLUMNS = "  {:<23}{:<10}{:<21}{:<10}{:<6}{}"


def show_validation(outcome: RunConfigOutcome) -> None:
    """Print the runs of ``run-config``."""
    out = console()
    for result in outcome.results:
        _result(out, result)
    if len(outcome.results) > 1:
        _winner(out, outcome)
    for line in outcome.notes:
        wrapped(out, line)


def _result(out: Console, result: ValidationResult) -> None:
    done = f"{result.steps_done} of {result.steps_asked} steps"
    out.print(heading(f"{result.strategy}: {result.outcome}, {done} in {format_seconds(result.wall_seconds)}"))
    if result.proxy:
        wrapped(out, f"scaled down: {result.proxy}", style="yellow")
    if result.comparisons:
        _comparisons(out, result)
    if result.data_wait_fraction is not None:
        wrapped(out, f"waiting for data: {percent(result.data_wait_fraction)} of the step")
    if result.straggler_fraction is not None:
        wrapped(out, f"slowest rank behind the fastest: {percent(result.straggler_fraction)} of the step")
    if result.energy_origin:
        wrapped(out, f"energy (measured): {measured_energy(result)}")
    if result.loss_first is not None and result.loss_last is not None:
        trend = {True: "falling", False: "NOT falling", None: "too few steps to say whether it falls"}
        wrapped(out, f"loss: {result.loss_first:.3f} -> {result.loss_last:.3f}, {trend[result.loss_falling]}")
    for note in result.notes:
        wrapped(out, note)
    cause = result.cause
    if cause is not None:
        who = f" (rank {cause.rank})" if cause.rank is not None else ""
        wrapped(out, f"cause: {cause.kind.replace('_', ' ')}{who}: {cause.summary}", style="red")
        for line in cause.evidence:
            wrapped(out, f"| {safe(line)}", indent=4)
        if cause.fix:
            wrapped(out, f"fix: {cause.fix}")
        wrapped(out, f"log: {result.log_path}")


def _comparisons(out: Console, result: ValidationResult) -> None:
    """Print a table, or sentences where the terminal is narrow."""
    wide = out.width >= TABLE_WIDTH
    if wide:
        out.print(Text(COLUMNS.format("quantity", "predicted", "90 % range", "measured", "ratio", "").rstrip()))
    for row in result.comparisons:
        show = {"seconds": format_seconds, "bytes": format_bytes, "fraction": percent}.get(row.unit, format_count)
        cells = (
            row.quantity,
            "unknown" if row.predicted is None else show(row.predicted.likely),
            _range(row.predicted, row.unit),
            "unknown" if row.measured is None else show(row.measured),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            {True: "inside", False: "outside", None: ""}[row.inside],
        )
        if wide:
            out.print(Text(COLUMNS.format(*cells).rstrip()))
        else:
            name, likely, band, found, ratio, where = cells
            said = [f"{name}: predicted {likely}" + (f" ({band})" if band else ""), f"measured {found}"]
            wrapped(out, ", ".join([*said, *([f"x {ratio}"] if ratio else []), *([where] if where else [])]))


def _range(predicted: Interval | None, unit: str) -> str:
    if predicted is None or predicted.low == predicted.high:
        return ""
    show = {"seconds": format_seconds, "bytes": format_bytes, "fraction": percent}.get(unit, format_count)
    return f"{show(predicted.low)} .. {show(predicted.high)}"


def _winner(out: Console, outcome: RunConfigOutcome) -> None:
    rates = [(r.tokens_per_second, r.strategy) for r in outcome.results if r.tokens_per_second is not None]
    if not rates:
        return
    best_rate, best = max(rates)
    out.print(heading("who really wins"))
    for rate, strategy in sorted(rates, reverse=True):
        wrapped(out, f"{strategy}: {format_count(rate)} tokens per second, {percent(rate / best_rate)} of the best")
    chosen = outcome.results[0].strategy
    wrapped(out, f"the plan chose {chosen}; measured best is {best}")
