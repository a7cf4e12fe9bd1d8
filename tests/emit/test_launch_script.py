"""launch.sh run by bash itself; an interpreter that only tells how it was started takes torchrun's place.

Real launchers and ranks are in test_start.py.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.schema.plan import MemoryPlan

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

TELL = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1:2] == ["-c"]:
    exec(sys.argv[2])
else:
    print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
"""
ARBITRARY = "a b'c\"d$(touch pwned)`id`\\ \n*;&|<>#{{ x }}"


class Script:
    """A bundle's launch.sh in a directory of its own."""

    def __init__(self, folder: Path, plan) -> None:
        self.folder = folder / "a bundle $x"
        self.folder.mkdir()
        for file in render_bundle(plan, plan_examples.profile()):
            if "/" not in file.path:
                (self.folder / file.path).write_text(file.content, encoding="utf-8")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program("tell", TELL)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        base = {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": "tell", "HOME": str(self.folder)}
        return subprocess.run(
            ["bash", "--norc", str(self.folder / "launch.sh"), *arguments],
            env=base | environment,
            cwd=self.bin,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def told(self, *arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
        result = self.start(*arguments, **environment)
        assert result.returncode == 0, result.stderr
        told = json.loads(result.stdout)
        return told["arguments"], told["environment"]

    def refused(self, *arguments: str, **environment: str) -> str:
        result = self.start(*arguments, **environment)
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr.startswith("launch.sh: ")
        return result.stderr


@pytest.fixture
def make(tmp_path):
    return lambda plan: Script(tmp_path, plan)


def two_groups(hostnames: bool = True, strategy: str = "uneven_ddp", target: str = "torchrun"):
    return make_plan(
        strategy,
        target,
        (
            group("fast", nodes=2, devices=4, hostnames=("f1.site", "f2") if hostnames else ()),
            group("slow", devices=2, micro=1, hostnames=("s1",) if hostnames else ()),
        ),
        memory=MemoryPlan(zero_stage=1) if target == "deepspeed" else None,
    )


def test_one_node_needs_no_arguments(make):
    script = make(make_plan("ddp", "torchrun"))
    arguments, environment = script.told()
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert "--standalone" in arguments
    assert "--nproc-per-node=2" in arguments
    assert arguments[-1] == f"{script.folder}/train.py"
    assert environment["STRATADVISOR_RUN_DIR"] == f"{script.folder}/run"
    assert int(environment["OMP_NUM_THREADS"]) >= 1


def test_arguments_reach_the_training_program_as_they_are(make):
    script = make(make_plan("ddp", "torchrun"))
    given = ["--steps", "3", "--data", ARBITRARY, ""]
    arguments, _ = script.told(*given)
    assert arguments[arguments.index(f"{script.folder}/train.py") + 1 :] == given


def test_variables_of_the_user_win(make):
    script = make(make_plan("ddp", "torchrun", environment={"NCCL_DEBUG": "WARN", "EXTRA": ARBITRARY}))
    arguments, environment = script.told(
        NPROC_PER_NODE="7", STRATADVISOR_RUN_DIR="/else where", OMP_NUM_THREADS="3", NCCL_DEBUG="INFO"
    )
    assert "--nproc-per-node=7" in arguments
    assert environment["STRATADVISOR_RUN_DIR"] == "/else where"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["EXTRA"] == ARBITRARY


def test_an_empty_variable_of_the_user_counts_as_set(make):
    script = make(make_plan("ddp", "torchrun", environment={"NCCL_DEBUG": "WARN"}))
    assert script.told(NCCL_DEBUG="")[1]["NCCL_DEBUG"] == ""


def test_gloo_on_one_node_uses_the_loopback_interface_unless_told(make):
    if not Path("/sys/class/net/lo").exists():
        pytest.skip("this machine has no loopback interface of that name")
    script = make(make_plan("ddp", "torchrun", device_kind="cuda", precision="bf16"))
    assert script.told()[1]["GLOO_SOCKET_IFNAME"] == "lo"
    assert script.told(GLOO_SOCKET_IFNAME="eth7")[1]["GLOO_SOCKET_IFNAME"] == "eth7"


def test_gloo_across_nodes_never_gets_the_loopback_interface(make):
    script = make(two_groups())
    where = {"NNODES": "3", "NODE_RANK": "0", "MASTER_ADDR": "f1", "MASTER_PORT": "29500"}
    assert "GLOO_SOCKET_IFNAME" not in script.told(**where)[1]


def test_device_order_is_the_measured_one_on_gpus_only(make, tmp_path):
    (tmp_path / "gpu").mkdir()
    on_gpu = Script(tmp_path / "gpu", make_plan("ddp", "torchrun", device_kind="cuda", precision="bf16"))
    assert on_gpu.told(CUDA_VISIBLE_DEVICES="GPU-1,GPU-0")[1]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert on_gpu.told(CUDA_VISIBLE_DEVICES="MIG-1-2")[1]["CUDA_VISIBLE_DEVICES"] == "MIG-1-2"
    assert "CUDA_DEVICE_ORDER" not in make(make_plan("ddp", "torchrun")).told()[1]


def test_several_nodes_need_the_rendezvous_and_say_what_is_missing(make):
    script = make(two_groups())
    message = script.refused()
    assert "uses 3 nodes, and not set: NODE_RANK MASTER_ADDR MASTER_PORT;" in message
    assert "NODE_RANK=0 to 2" in message
    assert "not set: MASTER_PORT;" in script.refused(NNODES="3", NODE_RANK="0", MASTER_ADDR="f1")


@pytest.mark.parametrize(
    ("rank", "processes"), [("0", "4"), ("1", "4"), ("2", "2")], ids=["first", "second", "other group"]
)
def test_each_node_starts_the_processes_of_its_group(make, rank, processes):
    script = make(two_groups())
    arguments, _ = script.told(NODE_RANK=rank, MASTER_ADDR="10.0.0.1", MASTER_PORT="1234")
    assert arguments[2:7] == [
        f"--nproc-per-node={processes}",
        "--nnodes=3",
        f"--node-rank={rank}",
        "--master-addr=10.0.0.1",
        "--master-port=1234",
    ]


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "", " 1", "a[$(touch pwned)]", "3", "99999999999999999999"])
def test_a_wrong_node_rank_is_refused_and_never_evaluated(make, value):
    script = make(two_groups())
    message = script.refused(NNODES="3", NODE_RANK=value, MASTER_ADDR="f1", MASTER_PORT="29500")
    assert "NODE_RANK" in message
    assert not (script.bin / "pwned").exists()


@pytest.mark.parametrize("name", ["NNODES", "MASTER_PORT", "NPROC_PER_NODE"])
@pytest.mark.parametrize("value", ["0", "two", "-3", "1e3", "a[$(touch pwned)]"])
def test_wrong_numbers_are_refused_by_name(make, name, value):
    script = make(two_groups())
    where = {"NODE_RANK": "0", "MASTER_ADDR": "f1", "MASTER_PORT": "29500"} | {name: value}
    assert f"{name} must be a whole number from 1, not '{value}'" in script.refused(**where)
    assert not (script.bin / "pwned").exists()


def test_a_trial_on_one_node_of_many_needs_only_nnodes(make):
    script = make(two_groups())
    arguments, _ = script.told(NNODES="1")
    assert "--standalone" in arguments
    assert "--nproc-per-node=4" in arguments


def test_another_number_of_nodes_is_possible_and_said(make):
    script = make(two_groups())
    result = script.start(NNODES="2", NODE_RANK="1", MASTER_ADDR="f1", MASTER_PORT="29500")
    assert result.returncode == 0
    assert "the plan is for 3 nodes; 2 take part" in result.stderr


def test_a_plan_for_one_node_refuses_more(make):
    assert "uses one node, but NNODES is '2'" in make(make_plan("ddp", "torchrun")).refused(NNODES="2")


def test_a_missing_interpreter_is_named(make):
    assert "there is no 'no such python'" in make(make_plan("ddp", "torchrun")).refused(PYTHON="no such python")


def test_a_copy_away_from_the_bundle_is_refused(make, tmp_path):
    # sbatch launch.sh does this: Slurm runs a copy from its spool directory
    script = make(make_plan("ddp", "torchrun"))
    (script.folder / "train.py").unlink()
    assert "train.py is not beside this script" in script.refused()


SCONTROL = """#!/bin/bash
[[ $1 == show && $2 == hostnames && $3 == "$EXPECTED_LIST" ]] || exit 1
printf '%s\\n' $HOSTS
"""


def slurm(script: Script, hosts: str, node: str, node_list: str, **more: str) -> dict[str, str]:
    """Return what srun sets on one node; scontrol prints ``hosts`` for the list."""
    script.program("scontrol", SCONTROL)
    names = hosts.split()
    return {
        "SLURM_STEP_NUM_NODES": str(len(names)),
        "SLURM_STEP_NUM_TASKS": str(len(names)),
        "SLURM_NODEID": str(names.index(node)),
        "SLURMD_NODENAME": node,
        "SLURM_STEP_NODELIST": node_list,
        "SLURM_JOB_ID": "16007",
        "EXPECTED_LIST": node_list,
        "HOSTS": hosts,
    } | more


def test_under_srun_the_first_node_of_the_list_is_the_master(make):
    plan = make_plan("ddp", "torchrun", (group("n", nodes=3),))
    script = make(plan)
    arguments, _ = script.told(**slurm(script, "n3 n4 n9", "n4", "n[3-4,9]"))
    assert arguments[3:7] == [
        "--nnodes=3",
        "--node-rank=1",
        "--master-addr=n3",
        f"--master-port={15000 + 16007 % 15000}",
    ]


def test_a_long_node_list_is_read_whole(make):
    # a pipe into head would end scontrol with SIGPIPE, which pipefail turns into a failure
    hosts = " ".join(f"node{i:05d}" for i in range(20_000))
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=20_000, devices=1),)))
    environment = slurm(script, "node00000 node00001", "node00001", "node[00000-19999]")
    environment |= {"SLURM_STEP_NUM_NODES": "20000", "SLURM_STEP_NUM_TASKS": "20000", "HOSTS": "see file"}
    (script.bin / "hosts").write_text(hosts.replace(" ", "\n"))
    script.program("scontrol", f"#!/bin/bash\ncat '{script.bin}/hosts'\n")
    arguments, _ = script.told(**environment)
    assert "--master-addr=node00000" in arguments
    assert "--nnodes=20000" in arguments


def test_a_plain_node_list_needs_no_scontrol(make):
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=2),)))
    environment = slurm(script, "alpha beta", "beta", "alpha,beta")
    (script.bin / "scontrol").unlink()
    assert "--master-addr=alpha" in script.told(**environment)[0]


def test_a_bracketed_list_without_scontrol_asks_for_the_master(make):
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=2),)))
    environment = slurm(script, "n1 n2", "n2", "n[1-2]")
    (script.bin / "scontrol").unlink()
    for tool in ("bash", "dirname", "nproc"):  # and nothing else: some machines have a real scontrol
        (script.bin / tool).symlink_to(shutil.which(tool))
    environment["PATH"] = str(script.bin)
    assert "set MASTER_ADDR to the first of 'n[1-2]'" in script.refused(**environment)
    assert "--master-addr=n1" in script.told(**environment, MASTER_ADDR="n1")[0]


def test_a_failing_scontrol_is_reported(make):
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=2),)))
    environment = slurm(script, "n1 n2", "n2", "n[1-2]", EXPECTED_LIST="another")
    assert "scontrol cannot read the node list 'n[1-2]'" in script.refused(**environment)


def test_several_tasks_on_a_node_are_refused_since_torchrun_starts_the_ranks(make, tmp_path):
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=2),)))
    environment = slurm(script, "n1 n2", "n2", "n1,n2", SLURM_STEP_NUM_TASKS="16")
    assert "--ntasks-per-node=1" in script.refused(**environment)
    (tmp_path / "one").mkdir()
    alone = Script(tmp_path / "one", make_plan("ddp", "torchrun"))
    assert "srun started 8 copies" in alone.refused(SLURM_STEP_NUM_TASKS="8")


def test_a_batch_script_without_srun_is_not_taken_for_a_node_of_many(make):
    script = make(make_plan("ddp", "torchrun", (group("n", nodes=2),)))
    assert "or with srun" in script.refused(SLURM_NNODES="2", SLURM_NODEID="0", SLURM_JOB_NODELIST="n[1-2]")


@pytest.mark.parametrize(("node", "rank", "processes"), [("f1", 0, 4), ("f2", 1, 4), ("s1", 2, 2)])
def test_mixed_groups_under_srun_take_the_ranks_of_the_plans_names(make, node, rank, processes):
    script = make(two_groups())
    result = script.start(**slurm(script, "s1 f2 f1", node, "s1,f2,f1"))
    assert result.stderr == ""
    arguments = json.loads(result.stdout)["arguments"]
    assert arguments[2:6] == [
        f"--nproc-per-node={processes}",
        "--nnodes=3",
        f"--node-rank={rank}",
        "--master-addr=f1",
    ]


def test_mixed_groups_on_other_nodes_take_slurms_order_and_say_so(make):
    script = make(two_groups())
    result = script.start(**slurm(script, "x1 f2 s1", "s1", "x1,f2,s1"))
    assert "Slurm's order decides" in result.stderr
    assert json.loads(result.stdout)["arguments"][2:6] == [
        "--nproc-per-node=2",
        "--nnodes=3",
        "--node-rank=2",
        "--master-addr=x1",
    ]


def test_mixed_groups_without_names_say_that_the_order_matters(make):
    script = make(two_groups(hostnames=False))
    assert "Slurm's order decides" in script.start(**slurm(script, "a b c", "a", "a,b,c")).stderr


def deepspeed(**changes: object):
    return make_plan("zero2", "deepspeed", memory=MemoryPlan(zero_stage=2), **changes)


def test_the_deepspeed_target_starts_with_torchrun_unless_asked(make):
    script = make(deepspeed())
    arguments, environment = script.told()
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert environment["DS_ACCELERATOR"] == "cpu"


def test_the_deepspeed_launcher_gets_its_own_options_and_a_free_port(make):
    script = make(deepspeed())
    arguments, _ = script.told("--steps", "2", STRATADVISOR_LAUNCHER="deepspeed")
    assert arguments[:3] == ["-m", "deepspeed.launcher.runner", "--no_local_rank"]
    assert "--num_gpus=2" in arguments
    ports = [int(a.partition("=")[2]) for a in arguments if a.startswith("--master_port=")]
    assert len(ports) == 1
    assert 1024 <= ports[0] < 65536
    assert arguments[-3:] == [f"{script.folder}/train.py", "--steps", "2"]


def test_an_unknown_launcher_is_refused(make):
    assert "torchrun or deepspeed, not 'mpi'" in make(deepspeed()).refused(STRATADVISOR_LAUNCHER="mpi")


def test_visible_devices_become_an_include_list_for_the_deepspeed_launcher(make):
    # beside --num_gpus that launcher ignores CUDA_VISIBLE_DEVICES (DeepSpeed issues 662, 2976, 5818)
    script = make(deepspeed(device_kind="cuda", precision="bf16"))
    arguments, environment = script.told(STRATADVISOR_LAUNCHER="deepspeed", CUDA_VISIBLE_DEVICES="0,2,3")
    assert "--include=localhost:0,2" in arguments
    assert not [a for a in arguments if a.startswith("--num_gpus")]
    assert "CUDA_VISIBLE_DEVICES" not in environment
    message = script.refused(STRATADVISOR_LAUNCHER="deepspeed", CUDA_VISIBLE_DEVICES="GPU-7f3a,GPU-11aa")
    assert "STRATADVISOR_LAUNCHER=torchrun" in message


def test_the_deepspeed_launcher_on_several_nodes_uses_the_hostfile_without_ssh(make):
    script = make(two_groups(strategy="zero1", target="deepspeed"))
    arguments, _ = script.told(STRATADVISOR_LAUNCHER="deepspeed", NODE_RANK="2", MASTER_ADDR="f1", MASTER_PORT="4000")
    assert arguments[3:-1] == [
        f"--hostfile={script.folder}/hostfile",
        "--no_ssh",
        "--num_nodes=3",
        "--node_rank=2",
        "--master_addr=f1",
        "--master_port=4000",
    ]
    lines = [line for line in (script.folder / "hostfile").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["f1.site slots=4", "f2 slots=4", "s1 slots=2"]
