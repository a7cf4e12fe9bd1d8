"""Bundles started by their own launch.sh: real launchers, real ranks, gloo on the CPUs of this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import read_bundle, render_bundle, write_bundle

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]
LIMIT_SECONDS = 500


def place(plan, directory: Path) -> Path:
    write_bundle(render_bundle(plan, plan_examples.profile()), directory)
    return directory


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without what an outer launcher or scheduler left in it."""
    left = ("SLURM_", "TORCHELASTIC_", "NNODES", "NODE_RANK", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*left, "STRATADVISOR_", "NPROC_"))}
    return kept | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1"} | changes


def start(bundle: Path, *arguments: str, **changes: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(bundle / "launch.sh"), *arguments],
        env=environment(**changes),
        cwd=bundle.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> tuple[list[int], str]:
    try:
        output = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], "\n".join(output)


def events(run_directory: Path) -> list[dict]:
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]


def test_one_node_starts_without_arguments_from_any_directory(tmp_path):
    bundle = place(make_plan("ddp", "torchrun"), tmp_path / "a bundle")
    codes, output = finish(start(bundle, "--steps", "3"))
    assert codes == [0], output
    found = events(bundle / "run")
    assert found[0]["world_size"] == 2
    assert [e["step"] for e in found if e["event"] == "step"] == [1, 2, 3]
    assert read_bundle(bundle).drifted == ()


def test_the_deepspeed_launcher_starts_the_same_bundle(tmp_path):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    plan = make_plan("zero2", "deepspeed", memory=plan_examples.MemoryPlan(zero_stage=2))
    bundle = place(plan, tmp_path / "bundle")
    codes, output = finish(
        start(
            bundle,
            "--steps",
            "2",
            STRATADVISOR_LAUNCHER="deepspeed",
            STRATADVISOR_RUN_DIR=str(tmp_path / "elsewhere"),
        )
    )
    assert codes == [0], output
    found = events(tmp_path / "elsewhere")
    assert found[0]["world_size"] == 2
    assert [e["step"] for e in found if e["event"] == "step"] == [1, 2]
    assert not (bundle / "run").exists()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_two_nodes_with_unequal_groups_form_one_job(tmp_path):
    plan = make_plan("uneven_ddp", "torchrun", (group("fast", devices=2, micro=2), group("slow", devices=1, micro=1)))
    bundle = place(plan, tmp_path / "bundle")
    interface = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    for attempt in range(3):  # somebody else may take the port in between
        run = tmp_path / f"run{attempt}"
        where = {
            "NNODES": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "STRATADVISOR_RUN_DIR": str(run),
        }
        codes, output = finish(
            *(start(bundle, "--steps", "2", NODE_RANK=str(rank), **where, **interface) for rank in (1, 0))
        )
        if codes == [0, 0] or "in use" not in output:
            break
    assert codes == [0, 0], output
    found = events(run)
    assert found[0]["world_size"] == 3
    steps = [e for e in found if e["event"] == "step"]
    assert [e["step"] for e in steps] == [1, 2]
    # 2 devices with 2 sequences and 1 device with 1, of 64 tokens
    assert {e["tokens"] for e in steps} == {(2 * 2 + 1 * 1) * 64}
