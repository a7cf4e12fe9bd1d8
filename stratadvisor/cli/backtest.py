"""``stratadvisor backtest``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HELP = "Predict measured runs (a CSV file) and print the error beside each group: how far to trust the model."
EXAMPLE = "Example: stratadvisor backtest runs.csv --by gpu,strategy --output errors.csv"


def backtest(
    runs: Annotated[Path, typer.Argument(help="One run a line; docs/backtest.md names the columns.")],
    by: Annotated[
        str, typer.Option("--by", help="Group by: gpu, model, strategy, source, framework, any column.")
    ] = "gpu,strategy",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write every prediction as CSV.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw predicted against measured step times: a .svg file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the tables on standard output as JSON.")] = False,
) -> None:
    """Predict runs whose result is known."""
    from stratadvisor import store
    from stratadvisor.backtest import groups, scatter
    from stratadvisor.backtest.rows import read_rows
    from stratadvisor.backtest.run import predict_rows, summarise
    from stratadvisor.backtest.table import as_csv
    from stratadvisor.cli.console import note
    from stratadvisor.errors import UsageError

    names = groups.parse(by)
    if plot is not None and plot.suffix.lower() != ".svg":
        raise UsageError(f"{plot} is no .svg file", hint="the plot is drawn as SVG: --plot errors.svg")
    for path in (output, plot):
        _keep(path, runs, force)
    found = predict_rows(read_rows(runs))
    result = summarise(found, names)
    if plot is not None and not found.times:
        raise UsageError(f"no step time of {runs} could be predicted, so there is nothing to plot")
    if output is not None:
        store.atomic_write(output, as_csv(found))
        note(f"wrote {output}")
    if plot is not None:
        points = [
            (groups.group_of(o.row, names), o.measured_seconds, o.estimate.step_seconds.likely) for o in found.times
        ]
        store.atomic_write(plot, scatter.draw(points, "step time (s)"))
        note(f"wrote {plot}")
    if json_output:
        import dataclasses
        import json

        from stratadvisor.cli.console import echo_json

        echo_json(json.dumps({"file": str(runs), "by": names, **dataclasses.asdict(result)}, indent=2))
        return
    from stratadvisor.report.backtest import show_backtest

    show_backtest(runs, found, result)


def _keep(path: Path | None, runs: Path, force: bool) -> None:
    """Refuse to overwrite the runs themselves, a directory, or (without ``force``) any file.

    Raises:
        UsageError: it would be.

    """
    from stratadvisor.errors import UsageError

    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file")
    if path.exists() and (not force or (runs.exists() and path.samefile(runs))):
        raise UsageError(f"{path} exists", hint="--force replaces it (never the runs themselves); or name another file")
