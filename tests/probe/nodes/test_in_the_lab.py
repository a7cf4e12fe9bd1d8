"""Real hosts of the network lab: one with half the processor time, one behind a slow link."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lab
from stratadvisor.derive.cluster import planning_view
from stratadvisor.store import read_profile

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
GENEROUS = 400.0
SHAPED = 100e6 / 8
STATED = "1.25 GB/s"
"""10 Gb/s, which a veth device states whatever it carries."""


def test_the_slow_host_and_the_slow_link_are_named_and_the_rate_is_the_shaped_one(tmp_path: Path) -> None:
    spec = lab.Spec(
        hosts=(
            lab.spec.host("h1", {"rate": "1Gb/s", "cpu": 0.6}),
            lab.spec.host("h2", {"rate": "1Gb/s", "cpu": 0.3}),
            lab.spec.host("h3", {"rate": "100Mb/s", "cpu": 0.6}),
        )
    )
    reason = lab.unavailable(spec)
    if reason is not None:
        pytest.skip(reason)
    output = tmp_path / "cluster.json"
    words = [sys.executable, "-m", "stratadvisor", "probe", "--only", "compute", "--only", "nics", "--json"]
    with lab.cluster(spec) as cluster:
        job = {"NNODES": "3", "MASTER_ADDR": cluster.addresses["h1"], "PYTHONPATH": str(ROOT)}
        started = {
            host: cluster.popen(
                host,
                [*words, "--time-limit", "120", "--output", str(output)],
                {**job, "NODE_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(cluster.addresses)
        }
        said = {host: process.communicate(timeout=GENEROUS) for host, process in started.items()}
        assert {process.returncode for process in started.values()} == {0}, said
    profile = read_profile(output)
    assert json.loads(said["h1"][0])["nodes"]
    assert [node.hostname for node in profile.nodes] == ["h1", "h2", "h3"]
    assert len(profile.node_pairs) == 3
    assert {pair.interface_a for pair in profile.node_pairs} == {pair.interface_b for pair in profile.node_pairs}
    assert {pair.interface_a for pair in profile.node_pairs} == {cluster.device}
    (slow_link,) = [verdict for verdict in profile.verdicts if "slow connection" in verdict.message]
    assert slow_link.subject == "h3 eth0"
    assert f"its driver states {STATED}" in slow_link.message
    measured = profile.nodes[2].network_bytes_per_second
    assert measured.origin == "measured"
    assert measured.value == pytest.approx(SHAPED, rel=0.08)
    assert "h2" in [verdict.subject for verdict in profile.verdicts if verdict.message.startswith("slow node")]
    classes = [set(node_class.hostnames) for node_class in planning_view(profile).cluster.classes]
    assert {"h2"} in classes
    assert {"h3"} in classes
