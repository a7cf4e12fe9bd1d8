"""Kubernetes files: their keys against those of the custom resources, and their commands run by bash."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import plan_examples
import pytest
import yaml
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError

PLANS = plan_examples.examples()
TRAINER = {"args", "command", "env", "image", "numNodes", "numProcPerNode", "resourcesPerNode"}
TRAIN_JOB = {"activeDeadlineSeconds", "initializer", "managedBy", "runtimePatches", "runtimeRef", "suspend", "trainer"}
CONTAINER_PATCH = {"env", "name", "securityContext", "volumeMounts"}
# Keys: trainer.kubeflow.org_trainjobs.yaml of Kubeflow Trainer (v1alpha1, after 2.2), read 2026-11-30.


def documents(name: str) -> dict[str, Any]:
    files = render_bundle(PLANS[name], plan_examples.profile(), beside=("kubeflow",))
    made = {file.path.rpartition("/")[2]: file.content for file in files if file.path.startswith("targets/kubeflow/")}
    return {path: yaml.safe_load(text) for path, text in made.items() if path.endswith(".yaml")}


@pytest.mark.parametrize("name", ["ddp_cpu", "hsdp_gpu", "zero3_gpu", "diloco_cpu"])
def test_a_train_job_has_the_keys_of_the_resource_and_the_nodes_of_the_plan(name):
    job, plan = documents(name)["trainjob.yaml"], PLANS[name]
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert set(job["spec"]) <= TRAIN_JOB
    trainer = job["spec"]["trainer"]
    assert set(trainer) <= TRAINER
    assert trainer["numNodes"] == plan.groups[0].num_nodes
    assert trainer["numProcPerNode"] == plan.groups[0].devices_per_node
    gpus = trainer.get("resourcesPerNode", {}).get("limits", {}).get("nvidia.com/gpu")
    assert gpus == (plan.groups[0].devices_per_node if plan.device_kind == "cuda" else None)
    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert set(pod) == {"containers", "volumes"}
    assert all(set(container) <= CONTAINER_PATCH for container in pod["containers"])
    assert {m["name"] for m in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}


@pytest.mark.parametrize("name", ["ddp_cpu", "hsdp_gpu", "zero3_gpu"])
def test_a_pytorch_job_has_one_pod_for_each_node(name):
    job = documents(name)["pytorchjob.yaml"]
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] == 1
    assert sum(r["replicas"] for r in replicas.values()) == PLANS[name].groups[0].num_nodes
    for replica in replicas.values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # the operator sets its variables in the container of this name only


def test_unequal_nodes_are_refused_and_slurm_is_named():
    plan = make_plan("diloco", "async", (group("a", devices=2), group("b", devices=1)))
    with pytest.raises(EmitError, match="one kind of pod") as caught:
        choose_targets(plan, ("kubeflow",))
    assert caught.value.hint.startswith("the nearest target that can: slurm")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("kind", ["trainjob.yaml", "pytorchjob.yaml"])
def test_the_command_of_a_pod_hands_over_what_the_operator_says(tmp_path: Path, kind):
    found = documents("zero3_gpu")[kind]["spec"]
    if kind == "trainjob.yaml":
        command = found["trainer"]["command"]
        given = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "pod-0", "PET_MASTER_PORT": "29400"}
    else:
        (container,) = found["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        command = container["command"]
        given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29400"}
    (tmp_path / "launch.sh").write_text(
        'printf "%s\\n" "$NNODES $NODE_RANK $MASTER_ADDR $MASTER_PORT" "${RANK-none} ${PET_NNODES-none}" "$@"\n'
    )
    command = [part.replace("/bundle/", f"{tmp_path}/") for part in command]
    done = subprocess.run(
        [*command, "--steps", "3"],
        env={"PATH": os.environ["PATH"], **given},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == ["2 1 pod-0 29400", "none none", "--steps", "3"]
