"""The regret benchmark on four clusters, in short: it probes, chooses, trains ranks to a loss and writes its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lab
from benchmarks.regret import records
from benchmarks.regret.clusters import CASES
from benchmarks.regret.page import write_page
from benchmarks.regret.regrets import results

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
NAMES = ("two-equal-50M", "one-half-unshaped", "three-one-slow-100M", "two-by-two-equal-100M")


def test_a_short_run_measures_the_recommendation_beside_its_yardsticks(tmp_path):
    cases = [case for case in CASES if case.name in NAMES]
    for case in cases:
        reason = lab.unavailable(case.spec)
        if reason is not None:
            pytest.skip(reason)
    words = ["--clusters", ",".join(NAMES), "--models", "wide", "--repeats", "1", "--short"]
    where = ["--work", str(tmp_path / "work"), "--tables", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.regret", "run", *words, *where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    runs = records.read(tmp_path / "runs.csv")
    assert {run["cluster"] for run in runs} == set(NAMES), done.stderr
    assert {run["reason"] for run in runs} <= {"reached", "too slow"}, done.stderr
    found = results(tmp_path)
    assert [result.case.name for result in found] == list(NAMES)
    for result in found:
        recommended, plain = result.of("recommended"), result.of("plain")
        assert recommended is not None
        assert plain is not None
        assert result.of("flowchart") is not None
        assert min(result.regret(role) for role in ("recommended", "flowchart", "plain")) == 0.0
    write_page(tmp_path, tmp_path)
    page = (tmp_path / "regret.md").read_text()
    assert all(name in page for name in NAMES)
    assert (tmp_path / "regret.svg").read_text().startswith("<svg")
    again = subprocess.run(
        [sys.executable, "-m", "benchmarks.regret", "run", *words, *where],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert again.returncode == 0, again.stderr
    assert records.read(tmp_path / "runs.csv") == runs  # nothing is measured twice
