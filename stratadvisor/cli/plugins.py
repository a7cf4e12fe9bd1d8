"""``stratadvisor plugins``."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = "List the installed plug-ins: probes, strategies, rules and targets, and why one is left out."
EXAMPLE = "Example: stratadvisor plugins --json"


def plugins(
    json_output: Annotated[bool, typer.Option("--json", help="Print them on standard output as JSON.")] = False,
) -> None:
    """List the installed plug-ins."""
    from stratadvisor import pipeline
    from stratadvisor import plugins as found
    from stratadvisor.cli.console import echo_json
    from stratadvisor.plain import one_line

    pipeline.load_plugins()
    problems = found.problems()
    if json_output:
        import json

        rows = [
            {
                "group": p.group,
                "name": p.name,
                "value": p.value,
                "distribution": p.distribution,
                "problem": problems.get(p),
            }
            for p in found.installed()
        ]
        echo_json(json.dumps(rows, indent=2))
        return
    if not found.installed():
        typer.echo("no plug-in is installed; docs/extend.md tells how to write one")
    for plugin in found.installed():
        reason = problems.get(plugin)
        typer.echo(one_line(f"{plugin.title}" + (f" is left out: {reason}" if reason else "")))
