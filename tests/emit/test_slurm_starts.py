"""The Slurm target under a real Slurm: daemons on two hosts of a lab, cards that Slurm counts, ranks on processors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import plan_examples
import pytest
import slurm_cluster
from plan_examples import group, make_plan
from runtime_bundle import events, losses
from slurm_cluster import Slurm, slurm

from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.schema.plan import Plan

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(slurm_cluster.missing() is not None, reason=slurm_cluster.missing() or ""),
]
CARDS = {"h1": 8, "h2": 2}
STEPS = 4
ROUNDING = 2e-5
"""Losses are near 5; sums in another order differ in the seventh digit."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(CARDS, tmp_path_factory.mktemp("slurm")) as found:
        yield found


def bundle_of(plan: Plan, directory: Path) -> Path:
    write_bundle(render_bundle(plan, plan_examples.profile(), beside=("slurm",)), directory)
    return directory


def submit(cluster: Slurm, bundle: Path, run: Path, *options: str) -> str:
    """Submit the target's job as its README says, and return what it printed once it has ended."""
    run.mkdir()
    variables = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "STRATADVISOR_RUN_DIR": str(run)}
    script = bundle / "targets" / "slurm" / "job.sbatch"
    done = cluster.call(["sbatch", *options, str(script), "--steps", str(STEPS)], cwd=bundle, **variables)
    found = re.search(r"Submitted batch job (\d+)", done.stdout)
    assert found, done.stderr
    state = cluster.wait(found[1])
    log = bundle / f"slurm-{found[1]}.out"
    said = log.read_text() if log.exists() else cluster.told()
    assert state == "COMPLETED", f"{state}\n{said}"
    return said


def alone(bundle: Path, run: Path) -> None:
    """Run a bundle of one process here."""
    run.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "STRATADVISOR_", "MASTER_"))}
    ours = {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "STRATADVISOR_RUN_DIR": str(run)}
    done = subprocess.run(
        ["bash", str(bundle / "launch.sh"), "--steps", str(STEPS)],
        env=kept | ours,
        cwd=run,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_eight_and_two_ranks_start_as_one_job_and_train_as_one_process(cluster: Slurm, tmp_path: Path) -> None:
    shares = (
        group("large", devices=8, micro=1, hostnames=("h1",)),
        group("small", devices=2, micro=2, accumulation=2, hostnames=("h2",)),
    )
    plan = make_plan("uneven_ddp", "torchrun", shares)
    whole = 8 * 1 + 2 * 4
    assert plan.batch.global_batch_size == whole
    uneven = bundle_of(plan, tmp_path / "uneven")
    said = submit(cluster, uneven, tmp_path / "run")
    one = make_plan("single", "torchrun", (group(devices=1, micro=4, accumulation=whole // 4),))
    alone(bundle_of(one, tmp_path / "one"), tmp_path / "reference")
    # the loss of a step follows from the gradients of all steps before it
    assert len(losses(tmp_path)) == STEPS, said
    assert losses(tmp_path) == pytest.approx(losses(tmp_path, run="reference"), abs=ROUNDING)
    assert [e["tokens"] for e in events(tmp_path)] == [whole * 64] * STEPS


def test_even_nodes_start_by_one_srun(cluster: Slurm, tmp_path: Path) -> None:
    plan = make_plan("ddp", "torchrun", (group(nodes=2, devices=2, hostnames=("h1", "h2")),))
    said = submit(cluster, bundle_of(plan, tmp_path / "even"), tmp_path / "run", "--gpus-per-node=2")
    assert len(losses(tmp_path)) == STEPS, said
    assert losses(tmp_path)[-1] < losses(tmp_path)[0]
