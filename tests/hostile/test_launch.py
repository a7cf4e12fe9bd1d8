"""launch.sh with names and variables of strangers, run by bash itself; a program that only prints stands for python."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys

import plan_examples
import pytest
from hostile_inputs import FEW_NAMES, NAMES, PWNED

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.schema.plan import MemoryPlan

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

TELL = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
"""
VARIABLE_VALUES = [
    f"a[$(touch {PWNED})]",
    f"$(touch {PWNED})",
    f"1; touch {PWNED}",
    "-1",
    "0",
    "08",
    "1e3",
    "99999999999999999999",
    "1\n2",
    " 1",
    "one",
]
NUMBERS = ("NNODES", "NODE_RANK", "MASTER_PORT", "NPROC_PER_NODE")
SLURM = {
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "n0,n1,n2",
    "SLURMD_NODENAME": "n1",
}


def hostile_plan(name: str, *, deepspeed: bool = False):
    """Return a plan of three nodes of two kinds in which every text is ``name``."""
    groups = (
        plan_examples.group(name, nodes=1, devices=2, device_name=name, hostnames=("n0",)),
        plan_examples.group(f"{name} 2", nodes=2, micro=1, devices=2, device_name=name, hostnames=(name, f"{name}2")),
    )
    strategy, target = ("zero2", "deepspeed") if deepspeed else ("uneven_ddp", "torchrun")
    memory = MemoryPlan(sharding="gradients", zero_stage=2) if deepspeed else MemoryPlan()
    plan = plan_examples.make_plan(strategy, target, groups, memory=memory, shard_degree=6 if deepspeed else 1)
    changes = {
        "variant": name,
        "environment": {"NCCL_DEBUG": name.replace("\n", " "), "GLOO_SOCKET_IFNAME": name.replace("\n", " ")},
        "warnings": (name,),
        "assumptions": (name,),
    }
    return plan.model_copy(update=changes)


def write(folder, plan):
    folder.mkdir(parents=True)
    for file in render_bundle(plan, plan_examples.profile()):
        if "/" not in file.path:
            (folder / file.path).write_text(file.content, encoding="utf-8")
    tell = folder / "tell"
    tell.write_text(TELL)
    tell.chmod(tell.stat().st_mode | stat.S_IXUSR)
    return folder


def start(folder, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["bash", "--norc", str(folder / "launch.sh"), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHON": str(folder / "tell"), "HOME": str(folder)} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert not (folder / PWNED).exists()
    return done


@pytest.mark.parametrize("name", FEW_NAMES)
def test_names_in_a_plan_are_never_executed(tmp_path, name):
    folder = write(tmp_path / "bundle", hostile_plan(name))
    several = start(folder, NNODES="3", NODE_RANK="1", MASTER_ADDR="n0", MASTER_PORT="29500")
    assert several.returncode == 0, several.stderr
    assert "--node-rank=1" in json.loads(several.stdout)
    slurm = start(folder, **SLURM)
    assert slurm.returncode == 0, slurm.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write(tmp_path_factory.mktemp("launch") / "bundle", hostile_plan("plain"))


@pytest.mark.parametrize("variable", NUMBERS)
def test_a_number_in_the_environment_is_never_executed(bundle, variable):
    base = {"NNODES": "3", "NODE_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    for value in VARIABLE_VALUES:
        done = start(bundle, **(base | {variable: value}))
        if value == "0" and variable == "NODE_RANK":
            assert done.returncode == 0
            continue
        assert done.returncode == 2, (value, done.stderr)
        assert done.stdout == ""
        assert done.stderr.startswith("launch.sh: ")
        assert variable in done.stderr


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS"])
def test_a_number_of_slurm_is_never_executed(bundle, variable):
    for value in VARIABLE_VALUES[:3]:
        done = start(bundle, **(SLURM | {variable: value, "SLURMD_NODENAME": "elsewhere"}))
        assert done.returncode == 2, (value, done.stderr)
        assert done.stdout == ""


@pytest.mark.parametrize("name", [n for n in FEW_NAMES if n])
def test_host_names_of_slurm_and_addresses_are_words(bundle, name):
    done = start(bundle, **(SLURM | {"SLURM_STEP_NODELIST": name, "SLURMD_NODENAME": name, "MASTER_ADDR": name}))
    if done.returncode == 0:
        assert f"--master-addr={name}" in json.loads(done.stdout)
    else:
        assert done.returncode == 2


def test_arguments_reach_the_program_as_they_are(bundle):
    given = [name for name in NAMES if name]
    done = start(bundle, *given, NNODES="1")
    assert json.loads(done.stdout)[-len(given) :] == given


@pytest.mark.parametrize("value", [f"0,$(touch {PWNED})", f"GPU-1;touch {PWNED}", "0,,1", "-1", "1 2", "MIG-a/b/c"])
def test_device_lists_are_words(tmp_path, value):
    plan = plan_examples.examples()["zero3_gpu"]
    folder = write(tmp_path / "bundle", plan)
    done = start(folder, CUDA_VISIBLE_DEVICES=value, STRATADVISOR_LAUNCHER="deepspeed", NNODES="1")
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES" in done.stderr
    done = start(folder, CUDA_VISIBLE_DEVICES=value, NNODES="1")
    assert done.returncode == 0


@pytest.mark.parametrize("name", FEW_NAMES)
def test_a_hostfile_holds_host_names_only(name):
    files = render_bundle(hostile_plan(name, deepspeed=True), plan_examples.profile())
    hostfile = next(file.content for file in files if file.path == "hostfile")
    lines = [line for line in hostfile.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 3
    for line in lines:
        host, _, slots = line.partition(" ")
        assert slots.startswith("slots=")
        assert host.replace("-", "").replace(".", "").isalnum()


@pytest.mark.parametrize("variable", ["A B", "A=B", "a[$(id)]", "", "1A", "A\nB", "LD_PRELOAD;x", "$(id)"])
def test_a_variable_with_an_odd_name_is_refused(variable):
    from stratadvisor.errors import EmitError

    plan = plan_examples.examples()["ddp_cpu"].model_copy(update={"environment": {variable: "1"}})
    with pytest.raises(EmitError, match="environment variable"):
        render_bundle(plan, plan_examples.profile())


@pytest.mark.parametrize("name", FEW_NAMES)
def test_a_batch_script_holds_no_line_of_a_name(name):
    plan = hostile_plan(name)
    files = render_bundle(plan, plan_examples.profile(), beside=("slurm",))
    script = next(file.content for file in files if file.path.endswith(".sbatch"))
    harmless = render_bundle(hostile_plan("plain"), plan_examples.profile(), beside=("slurm",))
    expected = next(file.content for file in harmless if file.path.endswith(".sbatch"))
    # the names stand behind comment signs only, and no line more or less is run
    assert [line for line in script.splitlines() if not line.startswith("#")] == [
        line for line in expected.splitlines() if not line.startswith("#")
    ]
    for line in script.splitlines():
        if line.startswith("#SBATCH --nodelist="):
            assert line == "#SBATCH --nodelist=n0"
