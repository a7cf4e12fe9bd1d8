"""Two nodes of a real Ray cluster on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor.errors import ProbeError
from stratadvisor.probe import ray_start

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
from stratadvisor.cli import run
code = run(["probe", "--ray", cluster.address, "--only", "software", "--quick", "--time-limit", "300",
            "--output", sys.argv[1]])
cluster.shutdown()
sys.exit(code)
"""


def test_every_node_of_a_ray_cluster_is_probed(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    output = tmp_path / "cluster.json"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RANK": "5", "WORLD_SIZE": "9"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(output)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    profile = json.loads(output.read_text())
    assert len(profile["nodes"]) == 2
    assert all(node["software"]["versions"]["python"] for node in profile["nodes"])
    assert len(profile["node_pairs"]) == 1


def test_a_probe_that_fails_on_the_node_says_so() -> None:
    code, text, said = ray_start.probe_here(["--only", "nonsense"], {}, 300)
    assert code != 0
    assert text == ""
    assert said


def test_no_cluster_is_a_sentence() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(ProbeError, match=r"no Ray cluster at 127\.0\.0\.1:1: Connection refused"):
        ray_start.probe_ray("127.0.0.1:1")
