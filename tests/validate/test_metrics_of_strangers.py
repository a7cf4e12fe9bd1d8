"""metrics.jsonl as a broken or hostile program leaves it: what can be read is read, and nothing else happens."""

from __future__ import annotations

import json
import os

import pytest

from stratadvisor.validate.metrics import column, number, read_metrics

STEP = json.dumps({"event": "step", "step": 7, "step_seconds": 0.5})


@pytest.mark.parametrize(
    "line",
    [
        '{"event": ' + "[" * 100_000 + "]" * 100_000 + "}",
        "x" * 1_000_000,
        '{"event": "step", "step": ' + "9" * 5000 + "}",
        '{"event": "step", "step": 1000000000000000000000000000000}',
        '{"event": "step", "step": -1}',
        '{"event": "step", "step": true}',
        '{"event": "step", "step": NaN}',
        '{"event": {"step": 1}}',
        "[]",
        "\0",
    ],
)
def test_a_line_that_says_nothing_is_left_out(tmp_path, line):
    (tmp_path / "m").write_text(f"{line}\n{STEP}\n{line}\n")
    found = read_metrics(tmp_path / "m")
    assert (found.last_step, len(found.steps)) == (7, 1)


def test_half_a_letter_at_the_end_is_left_out(tmp_path):
    (tmp_path / "m").write_bytes(STEP.encode() + b'\n{"event": "step", "step": 8, "x": "\xc3')
    assert read_metrics(tmp_path / "m").last_step == 7


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), "1", None, [], True])
def test_what_is_no_finite_number_is_none(value):
    assert number({"x": value}, "x") is None
    assert column([{"x": value}, {"x": 2}], "x") == [2.0]


def test_a_pipe_a_device_or_a_folder_in_its_place_is_empty(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero", ".", "missing", "a\0b"):
        assert read_metrics(tmp_path / name).steps == []
