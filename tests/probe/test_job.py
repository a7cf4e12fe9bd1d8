import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stratadvisor.probe.crew import Answer, Crew
from stratadvisor.probe.found import Gathered
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


def meeting(node_ranks: list[int], num_nodes: int, wait_seconds: float) -> dict[int, Answer]:
    """Let some nodes of a job meet; another port is tried when this one was taken in the meantime."""
    for _ in range(5):
        port = free_port()
        settings: dict[int, dict[str, Any]] = {
            member: {
                "node_rank": rank,
                "num_nodes": num_nodes,
                "address": "127.0.0.1",
                "port": port,
                "store_is_running": False,
                "document": f"node {rank}",
                "device": "cpu",
                "threads": 1,
                "wait_seconds": wait_seconds,
                "budget_seconds": 0.3,
                "quick": True,
            }
            for member, rank in enumerate(node_ranks)
        }
        with Crew(len(node_ranks)) as crew:
            answers = crew.ask("stratadvisor.probe.exchange:meet", settings, GENEROUS)
        if not any("EADDRINUSE" in a.reason or "in use" in a.reason for a in answers.values()):
            return answers
    raise AssertionError("no free port in five attempts")


def test_nodes_hand_over_their_documents_and_sweep() -> None:
    answers = meeting([0, 1], 2, GENEROUS)
    assert [a.status for a in answers.values()] == ["ok", "ok"], [a.reason for a in answers.values()]
    first, second = answers[0].value, answers[1].value
    assert isinstance(first, Gathered)
    assert first.documents == {0: "node 0", 1: "node 1"}
    assert second.documents == {}
    assert first.missing == ()
    assert first.sweep is not None
    assert first.sweep == second.sweep
    assert first.sweep.world_size == 2


def test_a_node_that_does_not_come_is_named_and_costs_one_wait() -> None:
    answers = meeting([0], 2, 3.0)
    assert answers[0].status == "ok", answers[0].reason
    gathered = answers[0].value
    assert gathered.documents == {0: "node 0"}
    assert gathered.missing == (1,)
    assert gathered.sweep is None
    assert gathered.sweep_reason


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
    (sweep,) = profile["collectives"]
    assert (sweep["scope"], sweep["num_nodes"], sweep["world_size"], sweep["backend"]) == ("inter_node", 2, 2, "gloo")
    assert sweep["bus_bandwidth_bytes_per_second"]["origin"] in ("measured", "unknown")
    assert len(sweep["points"]) >= 2


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
