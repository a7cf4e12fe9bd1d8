"""``stratadvisor probe``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratadvisor.schema.profile import ClusterProfile

HELP = "Measure this machine and write a cluster profile (JSON)."
EXAMPLE = "Example: stratadvisor probe --output cluster.json"


def probe(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the profile goes; an existing file is replaced.")
    ] = Path("cluster.json"),
    json_output: Annotated[bool, typer.Option("--json", help="Print the profile on standard output.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repeats.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this sub-probe only; may be repeated.")] = None,
    skip: Annotated[list[str] | None, typer.Option("--skip", help="Leave out a sub-probe; may be repeated.")] = None,
    storage: Annotated[Path | None, typer.Option("--storage", help="Measure the read rate of this directory.")] = None,
    merge: Annotated[
        list[Path] | None, typer.Option("--merge", help="Join profiles of several nodes instead; repeat per file.")
    ] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", min=5, max=3600, help="Seconds in all.")] = 60.0,
) -> None:
    """Measure this machine."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json, note, progress_line

    if merge:
        found: ClusterProfile | None = pipeline.merge_profiles(tuple(merge))
    else:
        found = pipeline.probe_job(
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            quick=quick,
            storage_path=storage,
            time_limit_seconds=time_limit,
            progress=progress_line(),
        )
    if found is None:  # another rank of this job writes the profile
        return
    profile = pipeline.write_profile(output, found)
    if json_output:
        from stratadvisor.store import dump

        echo_json(dump(profile))
    else:
        from stratadvisor.report.profile import show_profile

        show_profile(profile)
    note(f"profile written to {output}")
