import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor.probe.job import probe_job

pytestmark = pytest.mark.process
GENEROUS = 300.0
PROGRAM = """
from stratadvisor.probe.job import probe_job
from stratadvisor.store import dump
profile = probe_job(only=ONLY, quick=True, time_limit_seconds=300)
print(dump(profile) if profile is not None else "another rank reports", flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(program: str, **environ: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_nodes_become_one_profile_with_a_sweep_between_them() -> None:
    program = PROGRAM.replace("ONLY", "('software',)")
    for _ in range(5):
        base = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        base["MASTER_PORT"] = str(free_port())
        ranks = [started(program, **base, RANK=str(rank), GROUP_RANK=str(rank)) for rank in (0, 1)]
        done = [rank.communicate(timeout=GENEROUS) for rank in ranks]
        if not any("EADDRINUSE" in errors or "in use" in errors for _, errors in done):
            break
    assert [rank.returncode for rank in ranks] == [0, 0], done
    assert done[1][0].strip() == "another rank reports"
    profile = json.loads(done[0][0])
    host = socket.gethostname()
    # Both nodes are this machine: the profile tells them apart and says that they share a name.
    assert [node["hostname"] for node in profile["nodes"]] == [f"{host}-0", f"{host}-1"]
    assert any("call themselves" in verdict["message"] for verdict in profile["verdicts"])
    sweep, curve = profile["collectives"]
    assert (curve["operation"], curve["scope"], curve["world_size"]) == ("send_recv", "inter_node", 2)
    (pair,) = profile["node_pairs"]
    assert {pair["a"], pair["b"]} == {f"{host}-0", f"{host}-1"}
    assert pair["interface_a"] == "lo"  # where all traffic inside a machine goes
    assert (sweep["scope"], sweep["num_nodes"], sweep["world_size"], sweep["backend"]) == ("inter_node", 2, 2, "gloo")
    assert sweep["bus_bandwidth_bytes_per_second"]["origin"] in ("measured", "unknown")
    assert len(sweep["points"]) >= 2


def test_under_torchrun_the_agents_store_says_where_to_meet(tmp_path: Path) -> None:
    """Two agents on this machine stand for two nodes."""
    script = tmp_path / "probe_here.py"
    script.write_text(
        PROGRAM.replace("ONLY", "('software',)")
        + "import os, pathlib\n"
        + f"target = pathlib.Path({str(tmp_path)!r}) / ('rank' + os.environ['RANK'])\n"
        + "target.write_text('' if profile is None else dump(profile))\n"
    )
    for _ in range(5):
        port = free_port()
        agents = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank)),
                    *("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port), str(script)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in (0, 1)
        ]
        said = [agent.communicate(timeout=GENEROUS)[0] for agent in agents]
        if not any("EADDRINUSE" in text or "in use" in text for text in said):
            break
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert (tmp_path / "rank1").read_text() == ""
    profile = json.loads((tmp_path / "rank0").read_text())
    assert len(profile["nodes"]) == 2
    assert len(profile["node_pairs"]) == 1


def test_mpirun_s_nodes_get_their_numbers_from_the_first(tmp_path: Path) -> None:
    """What mpirun sets, without it: it is not installed here."""
    program = PROGRAM.replace("ONLY", "('software',)")
    for _ in range(5):
        base = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        ranks = [started(program, **base, OMPI_COMM_WORLD_RANK=str(rank)) for rank in range(3)]
        done = [rank.communicate(timeout=GENEROUS) for rank in ranks]
        if not any("in use" in errors for _, errors in done):
            break
    assert [rank.returncode for rank in ranks] == [0, 0, 0], done
    profile = json.loads(done[0][0])
    assert len(profile["nodes"]) == 3
    assert len(profile["node_pairs"]) == 3


def test_under_torchrun_on_one_node_the_first_rank_reports(tmp_path: Path) -> None:
    script = tmp_path / "probe_here.py"
    script.write_text(
        PROGRAM.replace("ONLY", "('collectives',)")
        + "import os, pathlib\n"  # one file per rank: lines of two ranks may mix on one pipe
        + f"target = pathlib.Path({str(tmp_path)!r}) / ('rank' + os.environ['RANK'])\n"
        + "target.write_text('' if profile is None else dump(profile))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank1").read_text() == ""
    profile = json.loads((tmp_path / "rank0").read_text())
    assert len(profile["nodes"]) == 1
    statuses = {observation["probe"]: observation["status"] for observation in profile["observations"]}
    if statuses["collectives"] == "ok":
        assert [sweep["scope"] for sweep in profile["collectives"]] == ["intra_node"]


def test_a_rank_that_does_not_lead_returns_at_once() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert probe_job(environ) is None
