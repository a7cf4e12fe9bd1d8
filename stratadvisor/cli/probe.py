"""``stratadvisor probe``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratadvisor.errors import UsageError

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
    hosts: Annotated[
        str | None, typer.Option("--hosts", help="Probe these nodes over ssh instead: node[01-16],login.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The ssh command of --hosts, with options.")] = "ssh",
    remote_python: Annotated[
        str, typer.Option("--remote-python", help="Interpreter on --hosts that has stratadvisor.")
    ] = "python3",
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Probe the nodes of this running Ray cluster instead: auto or its address."),
    ] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", min=5, max=3600, help="Seconds in all.")] = 60.0,
) -> None:
    """Measure this machine."""
    from stratadvisor import pipeline
    from stratadvisor.cli.console import echo_json, note, progress_line

    if not output.parent.is_dir():  # said before a minute of measuring, not after
        raise UsageError(f"{output.parent} is not a directory", hint="create it first, or name another --output")
    if output.is_dir():
        raise UsageError(f"{output} is a directory", hint="name a file, for example --output cluster.json")
    given = [name for name, value in (("--merge", merge), ("--hosts", hosts), ("--ray", ray)) if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} both say where profiles come from", hint="give one of them")
    if merge:
        found: ClusterProfile | None = pipeline.merge_profiles(tuple(merge))
    elif storage is not None and (hosts is not None or ray is not None):
        raise UsageError("--storage names a directory of this machine", hint="leave it out with --hosts and --ray")
    elif ray is not None:
        found = pipeline.probe_ray(
            ray,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            quick=quick,
            time_limit_seconds=time_limit,
            progress=progress_line(),
        )
    elif hosts is not None:
        found = pipeline.probe_hosts(
            hosts,
            ssh=ssh,
            python=remote_python,
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            quick=quick,
            time_limit_seconds=time_limit,
            progress=progress_line(),
            output=output,
        )
    else:
        found = pipeline.probe_job(
            only=tuple(only or ()),
            skip=tuple(skip or ()),
            quick=quick,
            storage_path=storage,
            time_limit_seconds=time_limit,
            progress=progress_line(),
            output=output,
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
