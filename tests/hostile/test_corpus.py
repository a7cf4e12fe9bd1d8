"""Every input that fuzzing kept: accepted or refused with an error of ours, and nothing else. See fuzz/."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.targets import TARGETS, attempt

CORPUS = Path(__file__).resolve().parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    accepted = 0
    for path in inputs:
        try:
            accepted += attempt(name, path.read_bytes())
        except Exception as problem:
            problem.add_note(f"with fuzz/corpus/{name}/{path.name}") if hasattr(problem, "add_note") else None
            raise
    assert accepted, "not one input is a right one: the target reads nothing"
