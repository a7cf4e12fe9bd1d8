"""Hosts of the network lab, one with half the processor time, one behind a slow link, probed by three starts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openssh
import pytest
import slurm_cluster

import lab
from stratadvisor.derive.cluster import planning_view
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.store import read_profile

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[3]
GENEROUS = 400.0
SHAPED = 100e6 / 8
STATED = "1.25 GB/s"
"""10 Gb/s, which a veth device states whatever it carries."""
WORDS = ("-m", "stratadvisor", "probe", "--quick", "--only", "compute", "--only", "nics", "--time-limit", "120")
SPEC = lab.Spec(
    hosts=(
        lab.spec.host("h1", {"rate": "1Gb/s", "cpu": 0.6}),
        lab.spec.host("h2", {"rate": "1Gb/s", "cpu": 0.3}),
        lab.spec.host("h3", {"rate": "100Mb/s", "cpu": 0.6}),
    )
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[lab.Cluster]:
    reason = lab.unavailable(SPEC)
    if reason is not None:
        pytest.skip(reason)
    with lab.cluster(SPEC) as cluster:
        yield cluster


def by_torchrun(hosts: lab.Cluster, folder: Path) -> None:
    """As on every node by hand: ``torchrun ... -m stratadvisor probe``."""
    started = hosts.torchrun(
        [*WORDS, "--output", str(folder / "cluster.json")],
        launcher=[sys.executable, "-m", "torch.distributed.run"],
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = {host: process.communicate(timeout=GENEROUS)[0] for host, process in started.items()}
    assert {process.returncode for process in started.values()} == {0}, said


def by_srun(hosts: lab.Cluster, folder: Path) -> None:
    """In an allocation of a real Slurm, one task on each node."""
    if slurm_cluster.missing() is not None:
        pytest.skip(slurm_cluster.missing() or "")
    with slurm_cluster.slurm_on(hosts, dict.fromkeys(hosts.addresses, 1), folder / "slurm") as slurm:
        step = ["srun", "--nodes", "3", "--ntasks-per-node", "1", "--cpus-per-task", str(os.cpu_count())]
        argv = [*step, sys.executable, *WORDS, "--output", str(folder / "cluster.json")]
        done = slurm.call(argv, PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stdout + done.stderr + slurm.told()


def by_ssh(hosts: lab.Cluster, folder: Path) -> None:
    """From the first host, ``--hosts`` over ssh to the sshd of each."""
    if openssh.missing() is not None:
        assert not os.environ.get("CI"), "the test machine must have openssh-server"
        pytest.skip(openssh.missing() or "")
    known = list(hosts.addresses.values())
    names = "".join(f"Host {name}\n  HostName {address}\n" for name, address in hosts.addresses.items())
    server, client = openssh.write_settings(folder / "ssh", known, names)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    listening = [
        hosts.popen(name, [openssh.SSHD, "-D", "-f", str(server), "-E", str(folder / f"{name}.log")])
        for name in hosts.addresses
    ]
    try:
        wait_for_port(hosts, 22)
        ours = ["--hosts", "h[1-3]", "--ssh", f"ssh -F {client}", "--remote-python", str(python)]
        argv = [sys.executable, *WORDS, *ours, "--output", str(folder / "cluster.json")]
        done = hosts.run("h1", argv, {"PYTHONPATH": str(ROOT)}, timeout=GENEROUS, check=False)
        logs = "".join(path.read_text() for path in folder.glob("*.log"))
        assert done.returncode == 0, done.stdout + done.stderr + logs
    finally:
        for process in listening:
            process.terminate()
            process.wait()


STARTS: dict[str, Callable[[lab.Cluster, Path], None]] = {"torchrun": by_torchrun, "srun": by_srun, "ssh": by_ssh}


def wait_for_port(hosts: lab.Cluster, port: int) -> None:
    """Wait until every host listens."""
    end = time.monotonic() + GENEROUS
    for name in hosts.addresses:
        while not hosts.run(name, ["ss", "-Hltn", f"sport = :{port}"]).stdout:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.parametrize("start", STARTS)
def test_the_slow_host_and_the_slow_link_are_named_and_the_rate_is_the_shaped_one(
    hosts: lab.Cluster, tmp_path: Path, start: str
) -> None:
    STARTS[start](hosts, tmp_path)
    profile = read_profile(tmp_path / "cluster.json")
    told(profile)
    assert [node.hostname for node in profile.nodes] == ["h1", "h2", "h3"]
    assert len(profile.node_pairs) == 3
    used = {name for pair in profile.node_pairs for name in (pair.interface_a, pair.interface_b)}
    assert used == {hosts.device}
    (all_reduce,) = [s for s in profile.collectives if (s.scope, s.operation) == ("inter_node", "all_reduce")]
    assert (all_reduce.world_size, all_reduce.interface) == (3, hosts.device)
    (slow_link,) = [verdict for verdict in profile.verdicts if "slow connection" in verdict.message]
    assert slow_link.subject == "h3 eth0"
    assert f"its driver states {STATED}" in slow_link.message
    measured = profile.nodes[2].network_bytes_per_second
    assert measured.origin == "measured"
    assert measured.value == pytest.approx(SHAPED, rel=0.08)
    slow_hosts = [verdict.subject for verdict in profile.verdicts if verdict.message.startswith("slow node")]
    assert slow_hosts == ["h2"]
    # the same for every start: one is apart by its speed, one by its link
    classes = [node_class.hostnames for node_class in planning_view(profile).cluster.classes]
    assert sorted(classes) == [("h1",), ("h2",), ("h3",)]


def told(profile: ClusterProfile) -> None:
    """Print the figures: shown when something is wrong."""
    for node in profile.nodes:
        speeds = {p: r.value for d in node.devices for p, r in d.matmul_flops_per_second.items()}
        print(node.hostname, node.network_bytes_per_second.value, speeds, node.speed_variation.value)
    for verdict in profile.verdicts:
        print(verdict.level, verdict.subject, verdict.message)
