"""Which tests run a place of the source, and what each costs: measured once, then asked for every mutant."""

from __future__ import annotations

import ast
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation.operators import Mutant

MEASURED = ("costs", "planner", "rules_engine", "strategies")
"""Packages whose lines are recorded; strategies, since they use the constants of the costs."""
SHOWN_FALLBACK_SECONDS = 5.0
"""Where no test runs the very line: as many of the tests of its module."""
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Tests by line; a test is a number."""

    names: list[str]
    seconds: list[float]
    """Processor time of each test."""
    lines: dict[str, dict[int, set[int]]]

    @classmethod
    def read(cls, path: Path) -> Coverage:
        """Return what ``measure`` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        lines = {file: {int(n): set(tests) for n, tests in of.items()} for file, of in found["lines"].items()}
        return cls(found["names"], found["seconds"], lines)


class _Recorder:
    """A pytest plugin: one context of coverage for each test, values remembered from earlier tests forgotten."""

    def __init__(self, measuring: Any) -> None:
        self._measuring = measuring
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        forget()
        self._measuring.switch_context(item.nodeid)
        start = time.process_time()
        yield
        self.seconds[item.nodeid] = time.process_time() - start

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def forget() -> None:
    """Empty the caches of what is measured, so that a test runs each line that it needs."""
    measured = tuple(f"stratadvisor.{package}." for package in MEASURED)
    for name, module in list(sys.modules.items()):
        if name.startswith(measured):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
                elif type(value).__name__ == "Memo":
                    value.clear()


def measure(root: Path, tests: list[str], output: Path, known: Coverage | None = None) -> int:
    """Run the tests and write which lines each runs, beside those ``known``; return how many tests pass."""
    import coverage

    measuring = coverage.Coverage(data_file=None, include=[str(root / "stratadvisor" / p / "*") for p in MEASURED])
    recorder = _Recorder(measuring)
    measuring.start()
    pytest.main([*tests, "-q", "-m", "not process and not gpu", "-p", "no:cacheprovider"], plugins=[recorder])
    measuring.stop()
    passed = [name for name in recorder.seconds if name not in recorder.failed]
    seconds = dict(zip(known.names, known.seconds, strict=True)) if known else {}
    seconds |= {name: recorder.seconds[name] for name in passed}
    names = list(seconds)
    number = {name: i for i, name in enumerate(names)}
    lines = {
        file: {n: set(of) for n, of in by_line.items()} for file, by_line in (known.lines if known else {}).items()
    }
    data = measuring.get_data()
    for file in data.measured_files():
        by_line = lines.setdefault(str(Path(file).relative_to(root)), {})
        for line, contexts in data.contexts_by_lineno(file).items():
            by_line.setdefault(line, set()).update(number[c] for c in contexts if c in number)
    written = {file: {n: sorted(of) for n, of in sorted(by_line.items())} for file, by_line in sorted(lines.items())}
    found = {"names": names, "seconds": list(seconds.values()), "lines": written}
    output.write_text(json.dumps(found), encoding="utf-8")
    return len(passed)


class Selection:
    """Chooses the tests that could notice a mutant."""

    def __init__(self, root: Path, coverage: Coverage) -> None:
        self._coverage = coverage
        files = [p for package in MEASURED for p in sorted((root / "stratadvisor" / package).rglob("*.py"))]
        self._trees = {str(p.relative_to(root)): ast.parse(p.read_text(encoding="utf-8")) for p in files}
        self._uses: dict[str, list[tuple[str, list[ast.AST]]]] = {}
        for file, tree in self._trees.items():
            for node, parents in _walk(tree):
                used = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
                if used is not None and isinstance(getattr(node, "ctx", None), ast.Load):
                    self._uses.setdefault(used, []).append((file, parents))

    def tests(self, mutant: Mutant, most_seconds: float) -> list[str]:
        """Return names of tests, the quickest first, of ``most_seconds`` of processor time in all."""
        parents = _around(self._trees[mutant.module], mutant)
        found = self._of(mutant.module, parents, set())
        if not found:
            found = set().union(*self._coverage.lines.get(mutant.module, {}).values())
            most_seconds = min(most_seconds, SHOWN_FALLBACK_SECONDS)
        own = f"test_{Path(mutant.module).stem}.py"
        seconds = self._coverage.seconds

        def rank(test: int) -> float:  # the tests of the very module are the likeliest to notice
            return (seconds[test] + 0.01) * (0.2 if own in self._coverage.names[test] else 1.0)

        chosen: list[str] = []
        spent = 0.0
        for test in sorted(found, key=rank):
            if spent + seconds[test] > most_seconds and chosen:
                break
            spent += seconds[test]
            chosen.append(self._coverage.names[test])
        return chosen

    def seconds(self, names: list[str]) -> float:
        """Return the processor time of tests."""
        known = dict(zip(self._coverage.names, self._coverage.seconds, strict=True))
        return sum(known[name] for name in names)

    def _of(self, file: str, parents: list[ast.AST], seen: set[str]) -> set[int]:
        """Return the tests that run a place, or use what is defined there when it runs at import."""
        lines = self._coverage.lines.get(file, {})
        statement = next(p for p in reversed(parents) if isinstance(p, ast.stmt))
        if any(isinstance(p, ast.FunctionDef) for p in parents):
            return set().union(*(lines.get(line, set()) for line in _lines(statement)))
        found: set[int] = set()
        for name in _defined(statement) - seen:
            for other, place in self._uses.get(name, []):
                if any(isinstance(p, ast.stmt) for p in place):
                    found |= self._of(other, place, seen | {name})
        return found


def _walk(tree: ast.AST) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Yield every node with the nodes around it, outermost first, itself last."""
    pending: list[tuple[ast.AST, list[ast.AST]]] = [(tree, [])]
    while pending:
        node, parents = pending.pop()
        path = [*parents, node]
        yield node, path
        pending += [(child, path) for child in ast.iter_child_nodes(node)]


def _around(tree: ast.Module, mutant: Mutant) -> list[ast.AST]:
    for node, path in _walk(tree):
        if isinstance(node, (ast.expr, ast.stmt)) and (node.lineno, node.col_offset) == (mutant.line, mutant.column):
            return path
    raise LookupError(mutant.key)


def _lines(statement: ast.stmt) -> range:
    """Return the lines of a statement; of a block its head, of a function (its default values) the body."""
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.FunctionDef):
        return range(statement.body[0].lineno, last + 1)
    body = getattr(statement, "body", None)
    return range(statement.lineno, body[0].lineno if body else last + 1)


def _defined(statement: ast.stmt) -> set[str]:
    names: set[str] = set()
    with contextlib.suppress(AttributeError):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]  # type: ignore[attr-defined]
        names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return names
