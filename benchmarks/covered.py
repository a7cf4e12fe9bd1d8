"""Which lines and branches the tests run, by package: reads the JSON report of coverage.py, writes a page.

    python -m benchmarks.covered REPORT PAGE [--least 90]

Exits with 1 where less than ``--least`` percent of lines and branches together is covered.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

SURFACE = "stratadvisor"
PAGE = """\
# Coverage

`make coverage` runs the tests that need no processes of their own with
[coverage.py](https://coverage.readthedocs.io/), counts lines and branches (each way out of every `if`, `for` and
`while`) of what models and decides, writes this page, and fails below {least:g} %.

{table}

*Covered* counts lines and branches together. Percentages are rounded down, so 100 means all.

## Least covered modules

{least_covered}

Code that runs in a process of its own (templates of overlays, plug-ins) is tested by starting it, which is not counted
here. A covered line is one that ran, not one that was checked: [mutation testing](mutation.md) asks whether a test
would notice a mistake in it.
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines and branches of a module, or of several."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.lines + other.lines,
            self.lines_run + other.lines_run,
            self.branches + other.branches,
            self.branches_run + other.branches_run,
        )

    @property
    def all(self) -> int:
        """Return lines and branches."""
        return self.lines + self.branches

    @property
    def missing(self) -> int:
        """Return lines and branches that did not run."""
        return self.all - self.lines_run - self.branches_run


def percent(part: int, whole: int) -> int:
    """Return a share in whole percent, rounded down."""
    return 100 * part // whole if whole else 100


def read(report: dict[str, Any]) -> dict[str, Counts]:
    """Return the counts of every module that has lines, by its path."""
    found: dict[str, Counts] = {}
    for path, file in report["files"].items():
        of = file["summary"]
        counts = Counts(of["num_statements"], of["covered_lines"], of["num_branches"], of["covered_branches"])
        if counts.lines:
            found[path] = counts
    return found


def package_of(path: str) -> str:
    """Return what a module is listed under: the package below the surface, or the module itself."""
    below = PurePosixPath(path).relative_to(SURFACE)
    return below.parts[0].removesuffix(".py")


def page(modules: dict[str, Counts], least: float) -> str:
    """Return the page."""
    by_package: dict[str, dict[str, Counts]] = defaultdict(dict)
    for path, counts in modules.items():
        by_package[package_of(path)][path] = counts
    rows = ["| | lines | branches | covered | least covered module |", "| --- | --: | --: | --: | --- |"]
    for name, own in (*sorted(by_package.items()), ("all", modules)):
        total = sum(own.values(), Counts())
        lowest = min(own, key=lambda path: (_share(own[path]), path))
        rows.append(
            f"| {name if name == 'all' else f'`{name}`'} | {percent(total.lines_run, total.lines)} % of {total.lines}"
            f" | {percent(total.branches_run, total.branches)} % of {total.branches} | {_share(total)} %"
            f" | {_name(lowest)}, {_share(own[lowest])} % |"
        )
    missing = sorted((p for p, c in modules.items() if c.missing), key=lambda p: (_share(modules[p]), p))[:10]
    shown = [f"- {_name(p)}: {_share(modules[p])} % of {modules[p].all}" for p in missing]
    return PAGE.format(least=least, table="\n".join(rows), least_covered="\n".join(shown) or "None misses anything.")


def _share(counts: Counts) -> int:
    return percent(counts.all - counts.missing, counts.all)


def _name(path: str) -> str:
    return f"`{PurePosixPath(path).relative_to(SURFACE)}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--least", type=float, default=90.0, help="percent (default: 90)")
    options = parser.parse_args()
    modules = read(json.loads(options.report.read_text(encoding="utf-8")))
    text = page(modules, options.least)
    options.page.write_text(text, encoding="utf-8")
    total = sum(modules.values(), Counts())
    print("\n".join(line for line in text.splitlines() if line.startswith(("|", "-"))))
    if 100 * (total.all - total.missing) < options.least * total.all:
        raise SystemExit(f"{_share(total)} % of lines and branches are covered; {options.least:g} % are asked for")


if __name__ == "__main__":
    main()
