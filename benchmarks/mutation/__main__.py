"""Mutation testing.

    python -m benchmarks.mutation map                       # which tests run which lines
    python -m benchmarks.mutation run [--per-module 10]     # goes on where the results end
    python -m benchmarks.mutation again                     # the survivors, after tests were added and ``map`` ran
    python -m benchmarks.mutation report

Run it from the root of a checkout that nobody edits meanwhile. Nothing is written to the source: a changed module
exists only in the process that tries it.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import Counter, defaultdict
from dataclasses import asdict, fields
from itertools import zip_longest
from pathlib import Path

from benchmarks.mutation.covering import Coverage, Selection, measure
from benchmarks.mutation.operators import Mutant, mutants_of, mutated, sample, signatures_of
from benchmarks.mutation.trial import Trial, quick_hypothesis, trial, warm_up

AREAS = ("costs", "rules_engine", "planner")
TESTS = ("costs", "rules_engine", "planner", "strategies", "properties", "backtest")
COLUMNS = ("key", *(f.name for f in fields(Mutant)), *(f.name for f in fields(Trial)), "tests")


def sampled(root: Path, per_module: int, seed: int) -> list[Mutant]:
    """Return the sample, one mutant of every module after the other."""
    signatures = signatures_of(root, "stratadvisor")
    modules = [str(p.relative_to(root)) for a in AREAS for p in sorted((root / "stratadvisor" / a).rglob("*.py"))]
    drawn = [sample(mutants_of(root, module, signatures), per_module, seed) for module in modules]
    return [m for turn in zip_longest(*drawn) for m in turn if m is not None]


def read(path: Path) -> dict[str, dict[str, str]]:
    """Return the results by key, the latest of each."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as stream:
        return {row["key"]: row for row in csv.DictReader(stream)}


def try_all(
    root: Path, mutants: list[Mutant], selection: Selection, results: Path, options: argparse.Namespace
) -> None:
    """Try mutants until they or the time are used up; every result is written at once."""
    quick_hypothesis()
    warm_up(root)
    signatures = signatures_of(root, "stratadvisor")
    new = not results.is_file()
    end = time.monotonic() + 60 * options.minutes
    with results.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if new:
            writer.writeheader()
        for mutant in mutants:
            if time.monotonic() > end:
                break
            tests = selection.tests(mutant, options.most_seconds)
            if tests:
                tree = mutated(root, mutant, signatures)
                found = trial(root, mutant.module, tree, tests, selection.seconds(tests))
            else:
                found = Trial("survived", "no test", 0.0)
            writer.writerow({"key": mutant.key, **asdict(mutant), **asdict(found), "tests": len(tests)})
            stream.flush()
            change = f"{mutant.before[:50]!r} -> {mutant.after[:50]!r}"
            print(f"{found.status:8} {found.seconds:5.1f} s {mutant.key}: {change}", flush=True)


def report(rows: dict[str, dict[str, str]]) -> str:
    """Return the scores and the survivors."""
    by_area: dict[str, Counter[str]] = defaultdict(Counter)
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows.values():
        by_area[row["module"].split("/")[1]][row["status"]] += 1
        by_operator[row["operator"]][row["status"]] += 1
    lines = ["| | tried | killed | timed out | survived | score |", "| --- | --: | --: | --: | --: | --: |"]
    for name, counts in (*by_area.items(), ("all", sum(by_area.values(), Counter())), *by_operator.items()):
        tried, survived = sum(counts.values()), counts["survived"]
        share = f"{1 - survived / tried:.1%}" if tried else ""
        lines.append(f"| {name} | {tried} | {counts['killed']} | {counts['timeout']} | {survived} | {share} |")
    seconds = sum(float(row["seconds"]) for row in rows.values())
    lines += ["", f"{seconds / 60:.0f} minutes of processor time", ""]
    for row in sorted(rows.values(), key=lambda r: (r["module"], int(r["line"]))):
        if row["status"] == "survived":
            place = f"{row['module'].removeprefix('stratadvisor/')}:{row['line']}"
            lines.append(f"- {place} {row['operator']}: `{row['before']}` -> `{row['after']}` ({row['tests']} tests)")
    return "\n".join(lines)


def main() -> None:
    """Do what the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("map", "run", "again", "report"))
    parser.add_argument("--map", type=Path, default=Path("build/mutation-map.json"))
    parser.add_argument("--results", type=Path, default=Path("build/mutants.csv"))
    parser.add_argument("--tests", nargs="+", default=[f"tests/{name}" for name in TESTS])
    parser.add_argument("--keep", action="store_true", help="add the tests to the map that is there")
    parser.add_argument("--per-module", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-seconds", type=float, default=15.0, help="of tests for one mutant")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--module", default="", help="only modules whose path contains this")
    options = parser.parse_args()
    root = Path.cwd()
    options.map.parent.mkdir(parents=True, exist_ok=True)
    if options.action == "map":
        quick_hypothesis()
        known = Coverage.read(options.map) if options.keep else None
        print(measure(root, options.tests, options.map, known), "tests")
        return
    rows = read(options.results)
    if options.action == "report":
        print(report(rows))
        return
    mutants = [m for m in sampled(root, options.per_module, options.seed) if options.module in m.module]
    known = {m.key for m in mutants if m.key in rows}
    if options.action == "again":
        mutants = [m for m in mutants if m.key in known and rows[m.key]["status"] == "survived"]
    else:
        mutants = [m for m in mutants if m.key not in known]
    try_all(root, mutants, Selection(root, Coverage.read(options.map)), options.results, options)


if __name__ == "__main__":
    main()
