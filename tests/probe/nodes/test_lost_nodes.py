"""Nodes of a real probe are killed, stopped and cut off, in the middle of it."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab
from stratadvisor.cli import run
from stratadvisor.probe.nodes.journal import SUFFIX

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
GENEROUS = 400.0
NUM_NODES = 4
KILLED, STOPPED = 2, 3
PROGRAM = """
import os, pathlib, sys, threading
from stratadvisor import pipeline

folder, rank = pathlib.Path(sys.argv[1]), os.environ["NODE_RANK"]

def progress(title, share):
    if title == "software versions" and rank in sys.argv[2].split(","):
        (folder / f"here{rank}").touch()  # it has said hello and measures itself
        threading.Event().wait()

pipeline.probe_job(
    only=("software",), quick=True, time_limit_seconds=300, progress=progress, output=folder / "cluster.json"
)
"""


def unused_port() -> int:
    """Return a port below those that the kernel gives to connections, so that nothing takes it by chance."""
    for _ in range(100):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port in a hundred attempts")


def wait_for_lines(journal: Path, kind: str, count: int, writer: subprocess.Popen[str]) -> None:
    """Wait until what has come in holds so many of a kind."""
    end = time.monotonic() + GENEROUS
    while not journal.exists() or journal.read_text().count(kind) < count:
        assert writer.poll() is None, writer.stderr.read() if writer.stderr is not None else ""
        assert time.monotonic() < end
        time.sleep(0.05)


class Nodes:
    """Four nodes on this machine; those in ``held`` stay in their own measurements."""

    def __init__(self, folder: Path, held: tuple[int, ...]) -> None:
        self.folder, self.held = folder, held
        port = str(unused_port())
        base = {**os.environ, "NNODES": str(NUM_NODES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = [sys.executable, "-c", PROGRAM, str(folder), ",".join(map(str, held))]
        self.processes = [
            subprocess.Popen(
                words,
                env={**base, "NODE_RANK": str(rank)},
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for rank in range(NUM_NODES)
        ]

    def wait_until_held(self) -> None:
        end = time.monotonic() + GENEROUS
        while not all((self.folder / f"here{rank}").exists() for rank in self.held):
            ended = [process.stderr.read() for process in self.processes if process.poll() is not None]
            assert not ended, ended
            assert time.monotonic() < end
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    started = Nodes(tmp_path, (KILLED, STOPPED))
    yield started
    started.close()


def test_a_killed_and_a_stopped_node_are_named_and_the_rest_is_complete(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_held()
    os.killpg(nodes.processes[KILLED].pid, signal.SIGKILL)
    os.killpg(nodes.processes[STOPPED].pid, signal.SIGSTOP)
    for rank in (0, 1):
        _, errors = nodes.processes[rank].communicate(timeout=GENEROUS)
        assert nodes.processes[rank].returncode == 0, errors
    profile = json.loads((tmp_path / "cluster.json").read_text())
    host = socket.gethostname()
    assert [node["hostname"] for node in profile["nodes"]] == [f"{host}-0", f"{host}-1"]
    assert all(node["software"]["versions"]["python"] for node in profile["nodes"])
    assert len(profile["node_pairs"]) == 1
    sweep = next(sweep for sweep in profile["collectives"] if sweep["operation"] == "all_reduce")
    assert (sweep["scope"], sweep["world_size"]) == ("inter_node", 2)
    lost = [verdict["message"] for verdict in profile["verdicts"] if verdict["message"].startswith("left out")]
    assert len(lost) == 2
    assert sum("its process has ended" in text for text in lost) == 1
    assert sum("no sign of life" in text and "its process is stopped" in text for text in lost) == 1
    assert not (tmp_path / f"cluster.json{SUFFIX}").exists()  # all of it is in the profile


def test_broken_off_with_ctrl_c_what_has_come_is_kept(nodes: Nodes, tmp_path: Path) -> None:
    nodes.wait_until_held()
    partial = tmp_path / f"cluster.json{SUFFIX}"
    wait_for_lines(partial, '"kind":"node"', 2, nodes.processes[0])
    merged = tmp_path / "merged.json"  # as after a loss of the first node: the journal is as good as a profile
    assert run(["probe", "--merge", str(partial), "--output", str(merged)]) == 0
    os.kill(nodes.processes[0].pid, signal.SIGINT)
    nodes.processes[0].communicate(timeout=GENEROUS)
    assert nodes.processes[0].returncode != 0
    profile = json.loads((tmp_path / "cluster.json").read_text())
    host = socket.gethostname()
    for document in (profile, json.loads(merged.read_text())):
        assert [node["hostname"] for node in document["nodes"]] == [f"{host}-0", f"{host}-1"]
    assert any("broken off" in verdict["message"] for verdict in profile["verdicts"])
    # the second node notices that the first is gone, and says so
    _, errors = nodes.processes[1].communicate(timeout=GENEROUS)
    assert nodes.processes[1].returncode != 0
    assert "first node" in errors


def test_in_the_rounds_a_killed_a_frozen_and_an_unplugged_host_are_told_apart(tmp_path: Path) -> None:
    spec = lab.uniform(5)
    reason = lab.unavailable(spec)
    if reason is not None:
        pytest.skip(reason)
    output = tmp_path / "cluster.json"
    words = [sys.executable, "-m", "stratadvisor", "probe", "--only", "software", "--time-limit", "120"]
    with lab.cluster(spec) as cluster:
        job = {"NNODES": "5", "MASTER_ADDR": cluster.addresses["h1"], "PYTHONPATH": str(ROOT)}
        started = {
            host: cluster.popen(
                host,
                [*words, "--output", str(output)],
                {**job, "NODE_RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, host in enumerate(cluster.addresses)
        }
        wait_for_lines(
            tmp_path / f"cluster.json{SUFFIX}", '"kind":"link"', 1, started["h1"]
        )  # some met, others not yet
        cluster.kill("h3")
        cluster.freeze("h4")
        cluster.cut("h5")
        for host in ("h1", "h2"):
            _, errors = started[host].communicate(timeout=GENEROUS)
            assert started[host].returncode == 0, errors
    profile = json.loads(output.read_text())
    assert [node["hostname"] for node in profile["nodes"]] == ["h1", "h2"]
    assert [{pair["a"], pair["b"]} for pair in profile["node_pairs"]] == [{"h1", "h2"}]
    sweep = next(sweep for sweep in profile["collectives"] if sweep["operation"] == "all_reduce")
    assert (sweep["scope"], sweep["world_size"]) == ("inter_node", 2)
    lost = {v["subject"]: v["message"] for v in profile["verdicts"] if v["message"].startswith("left out")}
    assert set(lost) == {"h3", "h4", "h5"}
    assert "its process has ended" in lost["h3"]
    assert "its process is stopped" in lost["h4"]
    assert "it is down, or cut off from the network" in lost["h5"]
