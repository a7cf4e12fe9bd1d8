"""``stratadvisor report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Write one self-contained HTML page for a bundle, a plan, a cluster or a validation result."
EXAMPLE = "Example: stratadvisor report stratadvisor-bundle -o report.html"
_HEAD_BYTES = 4096


def report(
    subject: Annotated[
        Path, typer.Argument(help="A bundle, its plan.json, a cluster profile or file, or a validation result.")
    ] = Path("stratadvisor-bundle"),
    cluster: Annotated[
        Path | None, typer.Option("--cluster", "-c", help="Profile or cluster file that a plan alone lacks.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
    overlay: Annotated[
        list[Path] | None, typer.Option("--overlay", help="Folder of your own rules that the plan was made with.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is no report.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print every figure's table as JSON; no page is written.")
    ] = False,
) -> None:
    """Write a report."""
    from stratadvisor import pipeline, store
    from stratadvisor.cli.console import note
    from stratadvisor.report_html import page
    from stratadvisor.report_html.subject import read_subject
    from stratadvisor.rules_engine import load

    about = read_subject(subject, cluster)
    rules = load.load_ruleset(pipeline.overlay_folders(tuple(overlay or ()))) if about.plan is not None else None
    if json_output:
        import json

        typer.echo(json.dumps(page.as_data(about, rules), indent=2))
        return
    if not force:
        _keep_others(output, page.MARK)
    note("drawing charts")
    store.atomic_write(output, page.render(about, rules))
    typer.echo(str(output))


def _keep_others(output: Path, mark: str) -> None:
    """Refuse to replace a file that is not a report.

    Raises:
        UsageError: it is something else, or a directory.

    """
    from stratadvisor.errors import UsageError

    if output.is_dir():
        raise UsageError(f"{output} is a directory", hint="name the page with -o, for example -o report.html")
    try:
        with output.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise UsageError(f"{output} cannot be read: {problem.strerror}") from None
    if mark.encode() not in head:
        raise UsageError(f"{output} exists and is no report", hint="--force replaces it; -o names another file")
