"""The table of commands."""

from __future__ import annotations

from typing import Any

import typer

from stratadvisor.cli import (
    backtest,
    check,
    compare,
    explain,
    plugins,
    probe,
    recommend,
    report,
    rules,
    run_config,
    schema,
)

app = typer.Typer(
    name="stratadvisor",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure a GPU cluster, decide how to train on it, write files that start, check the prediction.",
    epilog=(
        "Exit codes: 0 done; 1 other error; 2 wrong usage; 3 nothing could be probed; 4 bad profile or cluster file;"
        " 5 bad rules; 6 no plan fits; 7 files could not be written; 8 the validation run failed;"
        " 9 measured far from predicted; 10 files or cluster changed since the plan;"
        " 11 a checked configuration has errors; 12 bad model;"
        " 70 internal error; 130 interrupted."
    ),
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from stratadvisor import __version__

        typer.echo(f"stratadvisor {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


app.command("probe", help=probe.HELP, short_help="Measure this machine or these nodes.", epilog=probe.EXAMPLE)(
    probe.probe
)
app.command(
    "recommend", help=recommend.HELP, short_help="Decide, explain, write files that start.", epilog=recommend.EXAMPLE
)(recommend.recommend)
app.command(
    "run-config",
    help=run_config.HELP,
    short_help="Run the files briefly: predicted beside measured.",
    epilog=run_config.EXAMPLE,
)(run_config.run_config)
app.command(
    "check", help=check.HELP, short_help="Find wrong keys in another tool's configuration.", epilog=check.EXAMPLE
)(check.check)
app.command("compare", help=compare.HELP, short_help="Plan one model on several clusters.", epilog=compare.EXAMPLE)(
    compare.compare
)
app.command("explain", help=explain.HELP, short_help="Show why a plan is as it is.", epilog=explain.EXAMPLE)(
    explain.explain
)
app.command("report", help=report.HELP, short_help="Write one HTML page.", epilog=report.EXAMPLE)(report.report)
app.command(
    "backtest", help=backtest.HELP, short_help="Predict measured runs and print the errors.", epilog=backtest.EXAMPLE
)(backtest.backtest)
app.command("schema", help=schema.HELP, short_help="Print a document's JSON schema.", epilog=schema.EXAMPLE)(
    schema.schema
)
app.command("plugins", help=plugins.HELP, short_help="List installed plug-ins.", epilog=plugins.EXAMPLE)(
    plugins.plugins
)
app.add_typer(rules.app, name="rules", help="The flowchart: read it, check it, run its examples, draw it.")


def command() -> Any:
    """Return the command object that runs an argument list."""
    return typer.main.get_command(app)
