"""The two tables of docs/robustness.md: that what makes them can fail, and a part of the inputs on every run."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faults import rig
from benchmarks.faults.__main__ import FAULTS
from benchmarks.hostile import inputs
from benchmarks.hostile.trial import Trial, run

pytestmark = pytest.mark.process
EVERY = 60
ALL = list(inputs.everything())


def tried(tmp_path: Path, **changes: object):
    fields = {"kind": "k", "name": "n", "command": (), "may_write": ("out",), **changes}
    return run(Trial(**fields), tmp_path)  # type: ignore[arg-type]


def test_what_may_be_written_is_fine(tmp_path):
    outcome = tried(tmp_path, call=lambda place: (place / "out").write_text("x"))
    assert (outcome.code, outcome.outside, outcome.wrong) == (0, [], [])


def _moved(place: Path) -> None:
    (place / "out").write_text("x")
    (place / "out").rename(place.parent / "moved")


@pytest.mark.parametrize(
    "call",
    [
        lambda place: (place / "other").write_text("x"),
        lambda place: (place.parent / "beside").mkdir(),
        _moved,
        lambda place: os.system("touch elsewhere"),  # another process: no audit event, seen on the disk
        lambda place: os.symlink("/etc", place / "link"),
    ],
)
def test_a_write_outside_is_seen(tmp_path, call):
    assert tried(tmp_path, call=call).outside


def test_a_write_through_a_link_is_seen(tmp_path):
    def prepare(place: Path) -> None:
        (place / "mine").write_text("precious")
        (place / "out").symlink_to("mine")

    assert tried(tmp_path, prepare=prepare, call=lambda place: (place / "out").write_text("x")).outside


def test_a_traceback_is_seen(tmp_path):
    outcome = tried(tmp_path, call=lambda place: 1 / 0)
    assert "a traceback" in outcome.wrong
    assert outcome.code == 70


@pytest.mark.parametrize(("text", "code", "word"), [("\x1b[2J", 0, "moves a terminal"), ("", 99, "exit code 99")])
def test_an_escape_code_and_an_odd_exit_code_are_seen(tmp_path, text, code, word):
    def call(_: Path) -> None:
        os.write(1, text.encode())
        os._exit(code)

    assert any(word in wrong for wrong in tried(tmp_path, call=call).wrong)


def test_an_error_without_a_sentence_is_seen(tmp_path):
    assert tried(tmp_path, command=("recommend", "--gpus", "nonsense", "--model-size", "1B")).wrong == []
    folder = _folder(tmp_path, "quiet")
    assert tried(folder, command=("rules", "nonsense"), environ={}).code == 2
    from benchmarks.hostile import trial as module

    assert "0 error sentences" in module._wrong(Trial("k", "n", ("recommend",)), 2, "something else")
    assert "2 error sentences" in module._wrong(Trial("k", "n", ("recommend",)), 2, "stratadvisor: a\nstratadvisor: b")


def test_memory_is_measured(tmp_path):
    small = tried(_folder(tmp_path, "a"), call=lambda place: None).peak_bytes
    large = tried(_folder(tmp_path, "b"), call=lambda place: bytearray(os.urandom(1)) * 300_000_000).peak_bytes
    assert 250_000_000 < large - small < 400_000_000


def _folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


@pytest.mark.parametrize(
    "trial", ALL[::EVERY], ids=lambda trial: f"{trial.kind}-{trial.name}"[:60].encode("ascii", "replace")
)
def test_a_part_of_the_inputs(tmp_path, trial):
    outcome = run(trial, tmp_path)
    assert (outcome.wrong, outcome.outside) == ([], []), outcome.said[-2000:]


@pytest.mark.parametrize("kind", inputs.READERS)
def test_the_file_that_is_damaged_was_a_good_one(tmp_path, kind):
    outcome = run(inputs.reading(kind, "good", inputs.READERS[kind][2]()), tmp_path)
    assert (outcome.code, outcome.wrong) == (0, []), outcome.said


def test_there_are_hundreds_of_inputs_and_no_two_are_one():
    assert len(ALL) >= 300
    twice = [key for key, number in Counter((t.kind, t.name) for t in ALL).items() if number > 1]
    assert len(twice) < len(ALL) / 20, twice


def test_at_least_forty_faults_with_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert len({(fault.during, fault.what, fault.how) for fault in FAULTS}) == len(FAULTS)


FAULT = rig.Fault("n", "d", "w", "h", lambda _: None, r"^rank_died", (8,), "steps")  # type: ignore[arg-type,return-value]
GOOD = {"exit_code": 8, "seconds": 1.0, "said": "stratadvisor: x", "cause": "rank_died: y", "kept": "3 steps"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, ""),
        ({"exit_code": 0}, "exit code 0"),
        ({"cause": "unknown: y"}, "unknown"),
        ({"kept": "log"}, "kept 'log'"),
        ({"left": 2}, "2 processes"),
        ({"said": "Traceback (most recent call last):"}, "traceback"),
    ],
)
def test_a_fault_that_is_answered_wrongly_is_told(change, word):
    found = rig.problems(FAULT, rig.Seen(**{**GOOD, **change}))
    assert (found == []) if not word else word in "; ".join(found)
