"""A host with half a processor in one second and 0.15 of one in the next: found, named, planned with its mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lab
from benchmarks.regret.clusters import CASES
from stratadvisor.costs.changing import spread
from stratadvisor.derive.cluster import planning_view
from stratadvisor.store import read_profile

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
CASE = next(case for case in CASES if case.name == "two-changing-1G")
SCRIPT = """
import sys
from pathlib import Path
import lab
from benchmarks.regret import forked, probing
from benchmarks.regret.clusters import CASES
from benchmarks.regret.measuring import ticker

forked.prepare()
case = next(case for case in CASES if case.name == sys.argv[1])
with lab.cluster(case.spec) as cluster:
    tick = ticker(cluster, case)
    tick()
    probing.probe(cluster, Path(sys.argv[2]), quick=False, tick=tick)
"""


def test_the_probe_tells_what_the_host_does_and_plans_wait_for_it(tmp_path):
    reason = lab.unavailable(CASE.spec)
    if reason is not None:
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, CASE.name, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    profile = read_profile(tmp_path / "cluster.json")
    for node in profile.nodes:
        print(node.hostname, node.speed_variation, node.devices[0].speed_over_time)
        print(node.devices[0].matmul_flops_per_second["fp32"])
    assert [n.hostname for n in profile.nodes] == ["h1", "h2"]
    steady, changing = (n.devices[0] for n in profile.nodes)
    over = changing.speed_over_time
    assert over is not None
    # 0.15 of 0.5 for half of the time, a second at a time; a busy machine blurs it
    low, high = over.levels
    assert low.relative_speed / high.relative_speed == pytest.approx(0.3, abs=0.15)
    assert low.time_share == pytest.approx(0.5, abs=0.15)
    assert over.phase_seconds == pytest.approx(1.0, rel=0.5)
    # its rate is the mean, 0.325 to the other's 0.5, whatever phase the products were timed in
    rates = [d.matmul_flops_per_second["fp32"].value for d in (steady, changing)]
    assert rates[1] / rates[0] == pytest.approx(0.65, rel=0.25)
    assert [v.subject for v in profile.verdicts if v.message.startswith("runs at")] == ["h2"]
    # the steady host keeps one speed, or what others took of it is less than a third of what the quota takes of h2
    assert steady.speed_over_time is None or spread(steady.speed_over_time.shares) < spread(over.shares) / 3
    view = planning_view(profile)
    assert any(c.hostnames == ("h2",) and c.speed_levels == over.shares for c in view.cluster.classes)
    assert any(line.startswith("h2 runs at") for line in view.warnings)
