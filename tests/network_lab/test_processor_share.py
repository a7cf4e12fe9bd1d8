"""A quota on processor time shows in the measured rates, though every short run of a product escapes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lab

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
MEASURE = """
import json, os, sys
from stratadvisor.probe import compute, memory_bandwidth
with open(sys.argv[1], "w") as members:  # only now: importing under the quota would take a minute
    members.write(str(os.getpid()))
rates = compute.measure(device="cpu", threads=1, kind="cpu", quick=True)
memory = memory_bandwidth.measure("cpu", 1, 1e9, quick=True)
print(json.dumps({"flops": max(rates["fp32"].by_edge.values()), "bytes": memory.bytes_per_second}))
"""


def test_rates_under_a_quota_are_what_the_quota_leaves():
    spec = lab.Spec(hosts=(lab.Host(name="more", cpu=0.4), lab.Host(name="less", cpu=0.1)))
    reason = lab.unavailable(spec)
    if reason is not None:
        pytest.skip(reason)
    with lab.cluster(spec) as cluster:
        found = {}
        for name in ("more", "less"):
            members = str(cluster.groups[name].members)
            done = subprocess.run(
                [sys.executable, "-c", MEASURE, members], cwd=ROOT, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, done.stderr
            found[name] = json.loads(done.stdout)
    # four times the quota, four times the rate; the fastest short run alone would give a ratio of one
    assert found["more"]["flops"] / found["less"]["flops"] == pytest.approx(4.0, rel=0.35), found
    assert found["more"]["bytes"] / found["less"]["bytes"] == pytest.approx(4.0, rel=0.5), found
