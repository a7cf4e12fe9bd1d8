"""The two tables beside this file: what was chosen (choices.csv) and every run (runs.csv)."""

from __future__ import annotations

import csv
from pathlib import Path

RUN_FIELDS = (
    *("when", "commit", "cluster", "task", "key", "label", "repeat", "seconds", "steps", "step_seconds"),
    *("last_loss", "reason", "others"),
)
CHOICE_FIELDS = (
    *("commit", "cluster", "task", "key", "label", "strategy", "roles", "predicted_step_seconds"),
    *("predicted_run_seconds", "predicted_run_steps", "extra_steps"),
)


def read(path: Path) -> list[dict[str, str]]:
    """Return the lines of a table; none when there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def append(path: Path, fields: tuple[str, ...], line: dict[str, object]) -> None:
    """Add a line; a new file gets a head."""
    new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, fields, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(line)


def write(path: Path, fields: tuple[str, ...], lines: list[dict[str, str]]) -> None:
    """Write a whole table."""
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
