"""docs/check.md and the key lists are what the code and the installed frameworks say."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor.lint.codes import CODES
from stratadvisor.lint.documentation import render
from stratadvisor.lint.known import KINDS, changes, known

ROOT = Path(__file__).parent.parent.parent


def test_the_page_is_what_the_code_says():
    assert (ROOT / "docs" / "check.md").read_text() == render(), (
        "python -m stratadvisor.lint.documentation > docs/check.md"
    )


def test_the_page_names_every_code_and_key():
    page = render()
    for code in CODES:
        assert f"| {code} |" in page
    for kind in KINDS:
        for path in changes(kind):
            assert f"`{path}`" in page


def test_every_change_says_what_to_write_and_where_it_is_from():
    for kind in KINDS:
        for path, change in changes(kind).items():
            assert change.what in ("removed", "renamed", "deprecated", "never"), path
            assert change.fix, path
            assert change.source, path
            assert change.since or change.what != "removed", path


@pytest.mark.process
def test_the_key_lists_are_those_of_the_installed_frameworks(tmp_path):
    for kind in KINDS:
        if importlib.util.find_spec(kind) is None:
            pytest.skip(f"{kind} is not installed")
        if importlib.metadata.version(kind) != known(kind).version:
            pytest.skip(f"the lists are of {kind} {known(kind).version}")
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "framework_keys.py"), "--output", str(tmp_path)],
        check=True,
        capture_output=True,
        timeout=900,
    )
    for kind in KINDS:
        shipped = json.loads((ROOT / "stratadvisor" / "lint" / "data" / f"{kind}.json").read_text())
        assert json.loads((tmp_path / f"{kind}.json").read_text()) == shipped, kind
