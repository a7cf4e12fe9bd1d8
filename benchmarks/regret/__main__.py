"""The command line: run, page."""

from __future__ import annotations

import argparse
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.regret import forked, measuring
from benchmarks.regret.clusters import CASES
from benchmarks.regret.tasks import TASKS

SHORT_TARGET = 4.0
HERE = Path(__file__).resolve().parent


def _commit() -> str:
    done = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _settings(arguments: argparse.Namespace) -> measuring.Settings:
    forked.prepare()
    arguments.tables.mkdir(parents=True, exist_ok=True)
    until = float("inf") if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    return measuring.Settings(
        tables=arguments.tables,
        work=arguments.work,
        commit=_commit(),
        repeats=arguments.repeats,
        until=until,
        short=arguments.short,
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing."""
    settings = _settings(arguments)
    wanted = arguments.clusters.split(",") if arguments.clusters else None
    cases = [c for c in CASES if wanted is None or c.name in wanted][: arguments.first]
    tasks = [t for t in TASKS if arguments.models is None or t.name in arguments.models.split(",")]
    if arguments.short:
        tasks = [replace(task, target_loss=SHORT_TARGET) for task in tasks]
    for case in cases:
        if time.monotonic() > settings.until:
            break
        try:
            measuring.measure(case, tasks, settings)
        except RuntimeError as problem:  # one cluster that cannot be measured must not end the night
            measuring.say(f"{case.name}: {problem}")
    return 0


def contests(arguments: argparse.Namespace) -> int:
    """Run the contests."""
    from benchmarks.regret.contests import run as run_contests

    run_contests(_settings(arguments))
    return 0


def page(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from benchmarks.regret.page import write_page

    write_page(arguments.tables, arguments.output)
    return 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regret", description="How good are recommendations?")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("run", help="measure what is missing; as root")
    command.add_argument("--clusters", help="only these, with commas")
    command.add_argument("--first", type=int, help="only so many clusters of the list")
    command.add_argument("--models", help="only these, with commas")
    command.add_argument("--repeats", type=int, default=2)
    command.add_argument("--minutes", type=float, help="stop after so long; a later run goes on")
    command.add_argument(
        "--short",
        action="store_true",
        help="a trial: quick probe, an easy loss, recommendation and yardsticks only",
    )
    command.add_argument("--work", type=Path, default=Path("run/regret"), help="profiles and logs")
    command.add_argument("--tables", type=Path, default=HERE, help="where runs.csv and choices.csv are")
    command.set_defaults(action=run)
    command = commands.add_parser("contests", help="single strategies against each other; as root")
    command.add_argument("--repeats", type=int, default=5)
    command.add_argument("--minutes", type=float)
    command.add_argument("--work", type=Path, default=Path("run/regret"))
    command.add_argument("--tables", type=Path, default=HERE)
    command.set_defaults(action=contests, short=False)
    command = commands.add_parser("page", help="write docs/regret.md from the tables")
    command.add_argument("--tables", type=Path, default=HERE)
    command.add_argument("--output", type=Path, default=HERE.parent.parent / "docs")
    command.set_defaults(action=page)
    arguments = parser.parse_args()
    return int(arguments.action(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
