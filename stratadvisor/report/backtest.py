"""Errors of predictions against measured runs, on a screen."""

from __future__ import annotations

from pathlib import Path

from stratadvisor.backtest.run import Predicted, Summary
from stratadvisor.backtest.score import Score
from stratadvisor.report.console import console, heading, safe, wrapped
from stratadvisor.report.format import percent

MAX_NAME = 30


def show_backtest(path: Path, found: Predicted, result: Summary) -> None:
    """Print the tables: errors per group, calibration, picks, memory, what was left out."""
    out = console()

    def table(title: str, scores: tuple[Score, ...]) -> None:
        out.print(heading(title))
        out.print(
            f"  {'':{MAX_NAME}} {'runs':>5} {'MAPE':>7} {'median':>6} {'bias':>7} {'worst':>7} {'in band':>7}",
            soft_wrap=True,
        )
        for s in scores:
            out.print(
                f"  {_clip(s.group):{MAX_NAME}} {s.count:5d} {s.mean_absolute:7.1%} {s.median_absolute:6.1%}"
                f" {s.bias:+7.1%} {s.worst:+7.0%} {s.coverage:7.0%}",
                soft_wrap=True,
            )

    if result.time:
        table("Step time", result.time)
        if result.calibrated is not None:
            wrapped(
                out,
                f"with one run of the same device and framework setting the scale for its others: MAPE"
                f" {result.calibrated.typical:.1%} (middle choice of that run; {result.calibrated.mean:.1%} over all"
                f" choices), {result.calibrated.coverage:.0%} inside the calibrated band",
            )
        if result.picks is not None:
            p = result.picks
            wrapped(
                out,
                f"choice among measured layouts of one model on one cluster: the fastest in {p.best} of {p.contests};"
                f" the chosen one takes {percent(p.mean_loss)} longer on average (median {percent(p.median_loss)},"
                f" at worst {percent(p.worst_loss)}; by lot {percent(p.random_loss)})",
            )
    if result.memory:
        table("Peak memory", result.memory)
    if result.verdicts is not None:
        v = result.verdicts
        wrapped(
            out,
            f"fits or not: right for {v.right} of {v.runs} runs, for {v.out_of_memory_right} of {v.out_of_memory}"
            f" that ran out of memory; {percent(v.too_low)} of the measured peaks predicted more than 3 % too low",
        )
    if result.skipped:
        out.print(heading(f"Not predicted: {len(found.skipped)} of {path.name}'s rows"))
        for reason, count in result.skipped:
            wrapped(out, f"{count:5d}  {reason}", indent=2, hang=7)


def _clip(name: str) -> str:
    text = safe(name)
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."
