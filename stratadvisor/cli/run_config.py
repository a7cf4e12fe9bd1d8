"""``stratadvisor run-config``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Run a bundle for a few steps through its own launcher and show predicted beside measured."
EXAMPLE = "Example: stratadvisor run-config stratadvisor-bundle --steps 20"


def run_config(
    bundle: Annotated[Path, typer.Argument(help="A folder written by recommend.")] = Path("stratadvisor-bundle"),
    steps: Annotated[int, typer.Option("--steps", min=2, max=100_000, help="Optimizer steps to run.")] = 12,
    compare: Annotated[
        int, typer.Option("--compare", min=0, max=8, help="Also run this many runners-up and show who wins.")
    ] = 0,
    data: Annotated[Path | None, typer.Option("--data", help="A text or token file, not synthetic tokens.")] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Profile that keeps the calibration; default: the plan's.")
    ] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", min=10, help="Seconds for one run, in all.")] = 1800.0,
    stall_limit: Annotated[
        float | None,
        typer.Option(
            "--stall-limit",
            min=5,
            help="Seconds without a sign of life that mean a hang; default 300, or five steps if longer.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", min=1.0, help="End with code 9 if step time is off by more than this factor."),
    ] = None,
    no_proxy: Annotated[
        bool, typer.Option("--no-proxy", help="Refuse to scale down when this machine is smaller than the plan.")
    ] = False,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Run although files or this machine changed since the plan.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result on standard output.")] = False,
) -> None:
    """Run a bundle for a few steps."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json, note, progress_line
    from stratadvisor.errors import OutsideToleranceError, ValidationFailedError

    outcome = pipeline.run_config(
        bundle,
        steps=steps,
        compare=compare,
        data=data,
        cluster=cluster,
        time_limit_seconds=time_limit,
        stall_limit_seconds=stall_limit,
        allow_proxy=not no_proxy,
        accept_drift=accept_drift,
        progress=progress_line(),
    )
    if json_output:
        from stratadvisor.store import dump

        echo_json(dump(outcome))
    else:
        from stratadvisor.report.validation import show_validation

        show_validation(outcome)
    if outcome.calibrated_profiles:
        note(f"calibration kept in {', '.join(outcome.calibrated_profiles)}: the next recommend uses it")
    first = outcome.results[0]
    if first.outcome == "interrupted":
        raise KeyboardInterrupt
    if first.outcome != "completed":
        cause = first.cause
        raise ValidationFailedError(
            cause.summary if cause else f"the run ended as {first.outcome}", hint=cause.fix if cause else ""
        )
    ratio = next((row.ratio for row in first.comparisons if row.quantity == "step time"), None)
    if tolerance is not None and ratio is not None and not 1 / tolerance <= ratio <= tolerance:
        raise OutsideToleranceError(
            f"a step took {ratio:.2f} x the predicted time, outside the tolerance of {tolerance:g}",
            hint="plan again: the measured ratio is kept and corrects the next prediction",
        )
