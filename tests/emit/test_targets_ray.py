"""The files for Ray, read by Ray's own classes and its own command line; runs stand in test_targets_start.py."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest
from plan_examples import make_plan

from stratadvisor.emit.bundle import render_bundle, write_bundle

PLANS = plan_examples.examples() | {"single_cpu": make_plan("single", "torchrun", (plan_examples.group(devices=1),))}


def emit(name: str, folder: Path) -> Path:
    write_bundle(render_bundle(PLANS[name], plan_examples.profile(), beside=("ray",)), folder)
    return folder / "targets" / "ray"


@pytest.mark.parametrize("name", PLANS)
def test_rays_scaling_config_takes_the_workers_of_the_plan(tmp_path, name, monkeypatch):
    train = pytest.importorskip("ray.train")
    monkeypatch.setattr(sys, "path", list(sys.path))
    plan = PLANS[name]
    scaling = runpy.run_path(str(emit(name, tmp_path / "b") / "train_ray.py"))["scaling"]()
    assert isinstance(scaling, train.ScalingConfig)
    assert scaling.num_workers == plan.parallelism.world_size
    assert scaling.use_gpu == (plan.device_kind == "cuda")
    if len(plan.groups) > 1:
        wanted = [str(i) for i, g in enumerate(plan.groups) for _ in range(g.num_nodes * g.devices_per_node)]
        assert [selector["stratadvisor-group"] for selector in scaling.label_selector] == wanted
    else:
        assert scaling.label_selector is None


def submitted(folder: Path, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    tool = tmp_path / "ray"
    tool.write_text("#!/usr/bin/env bash\nprintf '%s\\0' \"$@\"\n")
    tool.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "RAY": str(tool), "PYTHON": sys.executable} | variables
    command = ["bash", str(folder / "submit.sh"), "--steps", "7", "--data", "a b"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_rays_own_command_line_reads_the_submission(tmp_path):
    jobs = pytest.importorskip("ray.dashboard.modules.job.cli")
    folder = emit("ddp_cpu", tmp_path / "b")
    place = {"RAY_ADDRESS": "http://head:8265", "STRATADVISOR_RUN_DIR": '/shared/"run"'}
    done = submitted(folder, tmp_path, **place)
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.split("\0")[:-1]
    assert arguments[:2] == ["job", "submit"]
    given = jobs.submit.make_context("submit", arguments[2:]).params
    assert given["address"] == "http://head:8265"
    assert given["working_dir"] == str(tmp_path / "b")
    assert given["entrypoint"] == ("python", "targets/ray/train_ray.py", "--steps", "7", "--data", "a b")
    environment = jobs.parse_runtime_env_args(runtime_env_json=given["runtime_env_json"])
    assert environment["env_vars"] == {"STRATADVISOR_RUN_DIR": '/shared/"run"'}
    assert (tmp_path / "b" / given["entrypoint"][1]).is_file()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_submission_without_a_cluster_or_a_shared_folder_is_refused_in_one_sentence(tmp_path):
    folder = emit("ddp_cpu", tmp_path / "b")
    for given, wanted in (({}, "RAY_ADDRESS"), ({"RAY_ADDRESS": "http://head:8265"}, "STRATADVISOR_RUN_DIR")):
        done = submitted(folder, tmp_path, **given)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert f"set {wanted}" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_plan_of_several_nodes_does_not_start_on_one_machine(tmp_path):
    pytest.importorskip("ray")
    folder = emit("hsdp_gpu", tmp_path / "b")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"PYTHON": sys.executable}
    command = ["bash", str(folder / "launch.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "this plan uses 16 nodes: start Ray on each of them" in done.stderr
