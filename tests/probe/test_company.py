"""Two probes at once: each says so, and a node of one's own job is no stranger."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stratadvisor.probe import company

pytestmark = pytest.mark.process
OTHER = """
import sys
from stratadvisor.probe.crew import Crew
with Crew(1) as crew:
    crew.members[0].start()
    print("measuring", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_probe(**environ: str) -> Iterator[int]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MASTER_")}
    kept |= {"PYTHONPATH": os.pathsep.join(sys.path), **environ}
    command = [sys.executable, "-c", OTHER]
    with subprocess.Popen(command, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "measuring\n"
        end = time.monotonic() + 60
        while process.pid not in company.others() and not environ and time.monotonic() < end:
            time.sleep(0.05)  # between fork and exec a member still has its parent's command line
        yield process.pid


def test_a_probe_beside_this_one_is_seen_until_it_ends(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with another_probe() as pid:
        seen = company.others()
        assert pid in seen
        (verdict,) = company.verdicts("n1", frozenset({pid}))
        assert str(pid) in verdict.message
        assert "at the same time" in verdict.message
    assert pid not in company.others()
    assert company.verdicts("n1", frozenset()) == ()


def test_a_node_of_the_same_job_is_no_other_probe(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29400")
    with another_probe(MASTER_ADDR="127.0.0.1", MASTER_PORT="29400") as pid:
        time.sleep(1)
        assert pid not in company.others()
        monkeypatch.setenv("MASTER_PORT", "29401")
        assert pid in company.others()
