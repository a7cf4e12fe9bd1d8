"""Targets beside a bundle, started by their own launch.sh on two CPU ranks with gloo."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import render_bundle, write_bundle

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]
TARGETS = ("accelerate", "huggingface", "lightning", "ray")
STEPS = 5
LIMIT_SECONDS = 500


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Two ranks, two micro-batches a step, bf16, a rate at which five steps are enough to see the loss fall."""
    plan = make_plan("ddp", "torchrun", (group(accumulation=2),), precision="bf16", settings={"learning_rate": 0.02})
    directory = tmp_path_factory.mktemp("targets") / "a bundle"
    write_bundle(render_bundle(plan, plan_examples.profile(), beside=TARGETS), directory)
    return directory


@pytest.fixture
def ray_home() -> Iterator[dict[str, str]]:
    """A home and a folder of Ray's own, near the root: names of sockets are short, and nothing else is touched."""
    pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="ray-")
    yield {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    shutil.rmtree(folder, ignore_errors=True)


def start(script: Path, run_directory: Path, *options: str, **variables: str) -> str:
    outer = ("SLURM", "TORCHELASTIC_", "NNODES", "NODE_RANK", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_")
    theirs = ("ACCELERATE_", "FSDP_", "PL_", "STRATADVISOR_", "NPROC_", "RAY_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*outer, *theirs))}
    ours = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "STRATADVISOR_RUN_DIR": str(run_directory)}
    offline = {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["bash", str(script), *options],
        env=kept | ours | offline | variables,
        cwd=run_directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def written_losses(run_directory: Path) -> list[float]:
    events = [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
    return [e["loss"] for e in events if e["event"] == "step"]


def own_losses(bundle: Path, run_directory: Path) -> list[float]:
    run_directory.mkdir()
    start(bundle / "launch.sh", run_directory, "--steps", str(STEPS))
    return written_losses(run_directory)


@pytest.fixture(scope="module")
def expected(bundle, tmp_path_factory) -> list[float]:
    """The losses of the plan's own program."""
    losses = own_losses(bundle, tmp_path_factory.mktemp("own") / "run")
    assert losses[-1] < losses[0]
    return losses


def printed_losses(output: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss ([\d.]+)$", output, re.MULTILINE)}


@pytest.mark.parametrize("target", ["accelerate", "lightning"])
def test_five_steps_have_the_losses_of_the_plans_own_program_also_when_resumed(bundle, expected, tmp_path, target):
    pytest.importorskip(target)
    script = bundle / "targets" / target / "launch.sh"
    first = printed_losses(start(script, tmp_path, "--steps", "3"))
    rest = printed_losses(start(script, tmp_path, "--steps", str(STEPS), "--resume"))
    assert sorted(first) == [1, 2, 3]
    assert sorted(rest) == [4, 5]
    # sums in bf16 may take another order; one step changes the loss here by 2 % and more
    assert list((first | rest).values()) == pytest.approx(expected, rel=2e-3)


def test_ray_trains_with_the_losses_of_the_plans_own_program(bundle, expected, tmp_path, ray_home):
    start(bundle / "targets" / "ray" / "launch.sh", tmp_path, "--steps", str(STEPS), **ray_home)
    assert written_losses(tmp_path) == pytest.approx(expected, rel=2e-3)


UNEQUAL_NODES = """
import os, runpy, sys
from ray.cluster_utils import Cluster

common = {"num_cpus": 1, "object_store_memory": 80 * 1024**2}
head = {"labels": {"stratadvisor-group": "1"}, "include_dashboard": False, **common}
cluster = Cluster(initialize_head=True, head_node_args=head)
try:
    cluster.add_node(labels={"stratadvisor-group": "0"}, **common)
    os.environ["RAY_ADDRESS"] = cluster.address
    sys.argv = [sys.argv[1], "--steps", "4"]
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    cluster.shutdown()
"""


def test_ray_gives_unequal_nodes_their_own_shares(tmp_path, ray_home):
    """Two Ray nodes on this machine, labelled in the other order than they start."""
    pytest.importorskip("ray")
    groups = (group("large", devices=1, micro=3), group("small", devices=1, micro=1))
    plan = make_plan("uneven_ddp", "torchrun", groups, settings={"learning_rate": 0.02})
    write_bundle(render_bundle(plan, plan_examples.profile(), beside=("ray",)), tmp_path / "b")
    program = tmp_path / "b" / "targets" / "ray" / "train_ray.py"
    starter = tmp_path / "start.sh"
    starter.write_text('exec "$PYTHON" -c "$PROGRAM" "$@"\n')
    start(starter, tmp_path, str(program), PROGRAM=UNEQUAL_NODES, **ray_home)
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # (3 + 1) sequences of 64 tokens: with two equal shares it would be 6 or 2
    assert [e["tokens"] for e in events if e["event"] == "step"] == [256] * 4
    losses = written_losses(tmp_path)
    assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_five_steps_of_the_trainer_of_transformers_lower_the_loss(bundle, tmp_path, strategy):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    if strategy == "zero2":  # the program itself refuses to go on where the Trainer does not run DeepSpeed
        pytest.importorskip("deepspeed")
        memory = plan_examples.MemoryPlan(sharding="gradients", zero_stage=2)
        plan = make_plan("zero2", "deepspeed", shard_degree=2, memory=memory, settings={"learning_rate": 0.02})
        bundle = tmp_path / "bundle"
        write_bundle(render_bundle(plan, plan_examples.profile(), beside=("huggingface",)), bundle)
    output = start(bundle / "targets" / "huggingface" / "launch.sh", tmp_path, "--steps", str(STEPS))
    losses = [float(value) for value in re.findall(r"'loss': '?([\d.]+)", output)]
    assert len(losses) == STEPS
    # 256 tokens of equal probability at first: ln 256 = 5.545
    assert losses[0] == pytest.approx(5.545, abs=0.1)
    assert losses[-1] < losses[0] - 0.1
    assert (tmp_path / "huggingface" / f"checkpoint-{STEPS}").is_dir()
