"""``python -m benchmarks.hostile``: run every hostile input, print the table, end with 1 when one is answered wrongly.

``--only WORD`` may be repeated and takes a part of a kind or a name; ``--failures FILE`` keeps what was wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))  # the lists of the tests are this table's as well

from benchmarks.hostile import inputs  # noqa: E402
from benchmarks.hostile.trial import Outcome, Trial, run  # noqa: E402

COLUMNS = (
    "kind of input",
    "inputs",
    "accepted",
    "tracebacks",
    "writes outside",
    "wrong otherwise",
    "worst s",
    "worst MiB",
)


def line(values: Iterable[object]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(str(value) for value in values) + " |"


def row(kind: str, outcomes: list[Outcome]) -> str:
    """Return the line of one kind."""
    tracebacks = sum(any("traceback" in wrong for wrong in o.wrong) or o.code == 70 for o in outcomes)
    otherwise = sum(any("traceback" not in wrong for wrong in o.wrong) and o.code != 70 for o in outcomes)
    return line(
        (
            kind,
            len(outcomes),
            sum(o.code == 0 for o in outcomes),
            tracebacks,
            sum(bool(o.outside) for o in outcomes),
            otherwise,
            f"{max(o.seconds for o in outcomes):.1f}",
            f"{max(o.peak_bytes for o in outcomes) / 2**20:.0f}",
        )
    )


def main() -> int:
    """Run the asked inputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--failures", type=Path)
    options = parser.parse_args()
    import stratadvisor.cli.app  # noqa: F401 - before the forks: each of them starts with it

    found: dict[str, list[Outcome]] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="stratadvisor-hostile-") as workplace:
        for number, trial in enumerate(inputs.everything()):
            if options.only and not any(word in f"{trial.kind} {trial.name}" for word in options.only):
                continue
            folder = Path(workplace) / str(number)
            folder.mkdir()
            outcome = run(trial, folder)
            found.setdefault(trial.kind, []).append(outcome)
            if outcome.wrong or outcome.outside:
                failures.append(told(trial, outcome))
                print(failures[-1], file=sys.stderr, flush=True)
            _remove(folder)
    everything = [outcome for outcomes in found.values() for outcome in outcomes]
    print("\n".join((line(COLUMNS), line("---" if i == 0 else "--:" for i in range(len(COLUMNS))))))
    for kind, outcomes in found.items():
        print(row(kind, outcomes))
    print(row("**all**", everything))
    if options.failures:
        options.failures.write_text("\n".join(failures))
    return 1 if failures else 0


def told(trial: Trial, outcome: Outcome) -> str:
    """Return what was wrong with one input."""
    said = outcome.said if len(outcome.said) < 1500 else outcome.said[-1500:]
    return f"{trial.kind} / {trial.name}: {outcome.wrong} {outcome.outside[:5]}\n  {said!r}"


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
