"""The table of docs/cases.md against the tests: every case once, each with one test named after it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "cases.md"
KINDS = {
    "fit": 8,
    "hostram": 5,
    "offload": 1,
    "hetero": 5,
    "net": 5,
    "nccl": 3,
    "probe": 12,
    "precision": 5,
    "batch": 5,
    "launch": 8,
    "config": 6,
    "peft": 2,
    "moe": 2,
    "data": 1,
    "ckpt": 2,
    "validate": 1,
    "async": 2,
}


def cases_of(path: Path) -> list[int]:
    """Return the numbers of the tests that are named after a case and hold an assertion."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for item in tree.body:
        match = re.fullmatch(r"test_o(\d\d)", item.name) if isinstance(item, ast.FunctionDef) else None
        if match is not None:
            assert any(isinstance(inner, ast.Assert) for inner in ast.walk(item)), f"{path.name}: {item.name}"
            found.append(int(match[1]))
    return found


def test_every_case_has_one_row_and_one_test() -> None:
    rows = [int(m[1]) for m in re.finditer(r"^\| O-(\d\d) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE)]
    assert rows == list(range(1, 74))
    tests = Counter(number for kind in KINDS for number in cases_of(HERE / f"test_{kind}.py"))
    assert tests == Counter(range(1, 74))


def test_every_kind_has_its_cases_in_order() -> None:
    first = 1
    for kind, count in KINDS.items():
        assert cases_of(HERE / f"test_{kind}.py") == list(range(first, first + count)), kind
        first += count
    assert first == 74
