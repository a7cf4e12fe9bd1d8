"""Cases O-50 to O-57: launchers, as the emitted scripts call them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from case_support import card, cluster_of, declare, files_of, nic, node, plan_for, together

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.emit.write import write_files
from stratadvisor.errors import EmitError
from stratadvisor.lint.run import check_file
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.schema.profile import CpuProfile

FAKE = """#!/usr/bin/env bash
printf 'visible=%s\\n' "${CUDA_VISIBLE_DEVICES-unset}"
printf 'argument=%s\\n' "$@"
"""


def started(folder: Path, plan, where, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a bundle's launcher with an interpreter that only says how it was called."""
    write_files(render_bundle(plan, where), folder / "bundle", force=True)
    python = folder / "python"
    python.write_text(FAKE)
    python.chmod(0o755)
    environ = {"PATH": os.environ["PATH"], "PYTHON": str(python), "HOME": str(folder), **variables}
    command = ["bash", str(folder / "bundle" / "launch.sh")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_o50(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES=0,2 and the deepspeed launcher: handed over as --include, never beside --num_gpus."""
    where = declare("2xA100-80GB-SXM")
    plan = plan_for(where, "1B", strategy="zero2")
    wish = {"CUDA_VISIBLE_DEVICES": "0,2", "MASTER_PORT": "29511"}
    own = started(tmp_path, plan, where, STRATADVISOR_LAUNCHER="deepspeed", **wish)
    assert own.returncode == 0, own.stderr
    assert "argument=--include=localhost:0,2" in own.stdout
    assert "visible=unset" in own.stdout
    assert "--num_gpus" not in own.stdout
    torchrun = started(tmp_path, plan, where, **wish)
    assert "visible=0,2" in torchrun.stdout
    assert "argument=--nproc-per-node=2" in torchrun.stdout


def test_o51() -> None:
    """sshd on another port: the launchers need no ssh; DeepSpeed's own is told how, with a test."""
    where = declare("4xA100-80GB-SXM", nodes=2, network="200Gb/s")
    written = files_of(plan_for(where, "1B", strategy="zero2"), where)
    assert "--no_ssh" in written["launch.sh"]
    assert "--ssh_port PORT" in written["README.md"]
    assert "ssh -o BatchMode=yes" in written["README.md"]
    assert written["hostfile"].count("slots=4") == 2  # the first host is tried like the other


def test_o52() -> None:
    """One srun with one task on each node; the rank comes from Slurm, the meeting point is the first of its list."""
    where = declare("4xA100-80GB-SXM", nodes=2, network="200Gb/s")
    written = files_of(plan_for(where, "1B", strategy="ddp"), where, beside=("slurm",))
    script = next(text for path, text in written.items() if path.endswith(".sbatch"))
    commands = [line for line in script.splitlines() if re.match(r"\s*(exec )?srun\b", line)]
    assert len(commands) == 1
    assert "--ntasks-per-node=1" in script
    launcher = written["launch.sh"]
    assert "node_rank=$SLURM_NODEID" in launcher
    assert 'first_host="${hosts[0]:-}"' in launcher
    assert not any(f"--node-rank={sign}0" in launcher for sign in ("", '"'))


def test_o53() -> None:
    """srun takes no --cpus-per-task over from sbatch: it is repeated, and one core for several GPUs is told."""
    where = declare("4xA100-80GB-SXM", nodes=2, network="200Gb/s", more="cpu_cores = 48")
    written = files_of(plan_for(where, "1B", strategy="ddp"), where, beside=("slurm",))
    script = next(text for path, text in written.items() if path.endswith(".sbatch"))
    command = script.split("srun", 1)[1]
    assert "--cpus-per-task" in command or "SRUN_CPUS_PER_TASK" in script
    host = node("n", [card("NVIDIA A100-SXM4-80GB", i, 81920) for i in range(4)], cores=1)
    cores = host.cpu.usable_cores.model_copy(update={"detail": "slurm: 1 of 64"})
    host = host.model_copy(update={"cpu": CpuProfile(usable_cores=cores, limited_by="affinity")})
    (told,) = [v for v in host_verdicts(host) if v.subject.endswith("processors")]
    assert told.level == "warning"
    assert "--cpus-per-task" in told.advice


def test_o54() -> None:
    """Pods with 1, 2 and 2 GPUs: five processes, and no manifest that gives every pod as many."""
    sizes = (1, 2, 2)
    pods = []
    for i, count in enumerate(sizes):
        cards = [card("NVIDIA A10", j, 23028) for j in range(count)]
        pods.append(node(f"pod{i}", cards, nics=(nic("eth0"),)))
    where = cluster_of(*pods)
    plan = plan_for(where, "110M", strategy="ddp", global_batch_size=40)
    assert plan.parallelism.world_size == sum(sizes) == 5
    taken = sum(g.num_nodes * g.devices_per_node * g.batch_per_device for g in plan.groups)
    assert taken == 40 * together(plan)
    with pytest.raises(EmitError, match="same number of devices"):
        files_of(plan, where, beside=("kubeflow",))
    equal = declare("2xA10", nodes=2, network="10Gb/s")
    manifest = files_of(plan_for(equal, "110M", strategy="ddp"), equal, beside=("kubeflow",))
    job = yaml.safe_load(
        next(text for path, text in manifest.items() if path.endswith("trainjob.yaml")).split("---")[-1]
    )
    assert "numProcPerNode" in json.dumps(job)


def test_o55(tmp_path: Path) -> None:
    """num_processes counts all machines: 16 for 2 x 8, and each machine gets its own rank."""
    where = declare("8xA100-80GB-SXM", nodes=2, network="200Gb/s")
    written = files_of(plan_for(where, "7B", strategy="fsdp2"), where, beside=("accelerate",))
    text = next(t for p, t in written.items() if p.endswith("accelerate.yaml"))
    config = yaml.safe_load(text)
    assert config["num_processes"] == config["num_machines"] * 8 == 2 * 8
    launcher = next(t for p, t in written.items() if p.endswith("accelerate/launch.sh"))
    assert '--machine_rank "$node_rank"' in launcher
    assert '--main_process_ip "$master" --main_process_port "$port"' in launcher
    from stratadvisor.derive.cluster import planning_cluster

    file = tmp_path / "accelerate.yaml"
    for wrong in (8, 1):
        file.write_text(text.replace("num_processes: 16", f"num_processes: {wrong}"))
        found = {f.code for f in check_file(file, cluster=planning_cluster(where)).findings}
        assert found & {"ACC202", "ACC206"}, wrong
    file.write_text(text)
    right = {f.code for f in check_file(file, cluster=planning_cluster(where)).findings if f.severity != "note"}
    assert not right


def test_o56(tmp_path: Path) -> None:
    """slots is how many devices a node has: 4, and --include picks below it; the launcher refuses the variable."""
    where = declare("4xA100-80GB-SXM", nodes=2, network="200Gb/s", more='hostnames = ["n1", "n2"]')
    plan = plan_for(where, "1B", strategy="zero2")
    written = files_of(plan, where)
    assert "n1 slots=4\nn2 slots=4\n" in written["hostfile"]
    assert "--include HOST:0,2" in written["README.md"]
    wish = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    wish |= {"CUDA_VISIBLE_DEVICES": "2,3", "STRATADVISOR_LAUNCHER": "deepspeed"}
    refused = started(tmp_path, plan, where, **wish)
    assert refused.returncode == 2
    assert "slots=all devices of a node" in refused.stderr
    kept = started(tmp_path, plan, where, **{**wish, "STRATADVISOR_LAUNCHER": "torchrun", "NPROC_PER_NODE": "2"})
    assert "visible=2,3" in kept.stdout
    assert "argument=--nproc-per-node=2" in kept.stdout


def test_o57(tmp_path: Path) -> None:
    """Four nodes are four: a fixed number, a range is refused; collectives end, and a run resumes."""
    where = declare("8xA100-80GB-SXM", nodes=4, network="200Gb/s")
    plan = plan_for(where, "1B", strategy="ddp")
    start = {"NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    fixed = started(tmp_path, plan, where, NNODES="4", **start)
    assert "argument=--nnodes=4" in fixed.stdout
    assert ":" not in fixed.stdout.split("argument=--nnodes=")[1].splitlines()[0]
    elastic = started(tmp_path, plan, where, NNODES="2:4", **start)
    assert elastic.returncode == 2
    assert "whole number" in elastic.stderr
    written = files_of(plan, where)
    assert "timeout_seconds" in written["stratadvisor_runtime/distributed.py"]
    assert "`--resume`" in written["README.md"]
    assert plan.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
