"""``stratadvisor explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Show why a plan is as it is: every question, clause and value, and why not another strategy."
EXAMPLE = "Example: stratadvisor explain stratadvisor-bundle --why-not zero3"


def explain(
    plan: Annotated[Path, typer.Argument(help="A bundle, or its plan.json.")] = Path("stratadvisor-bundle"),
    why_not: Annotated[str | None, typer.Option("--why-not", help="A strategy: ddp, fsdp2, zero3, diloco ...")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print decisions and alternatives as JSON.")] = False,
) -> None:
    """Show why a plan is as it is."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json

    document = pipeline.load_plan(plan)
    if json_output:
        echo_json(document.model_dump_json(include={"decisions", "alternatives", "flips"}, indent=2))
        return
    from stratadvisor.report.trace import show_trace, show_why_not

    if why_not is not None:
        show_why_not(document, why_not)
    else:
        show_trace(document)
