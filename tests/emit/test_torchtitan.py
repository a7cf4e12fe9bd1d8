"""The configuration for torchtitan against what its classes take (``benchmarks/torchtitan_fields.py``)."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from pathlib import Path

import plan_examples
import pytest
from plan_examples import MemoryPlan, group, large_model, make_plan

from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError

LISTED = json.loads((Path(__file__).parent / "torchtitan_fields.json").read_text())["parameters"]
A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "micro": 1}
LARGE = {"model": large_model(), "sequence_length": 2048, "device_kind": "cuda", "precision": "bf16"}
TWO_NODES = (group("a100", nodes=2, devices=8, accumulation=2, **A100),)


def plan(strategy: str = "hsdp", shard_degree: int = 8, checkpointing: str = "full", **changes):
    memory = MemoryPlan(sharding="parameters", activation_checkpointing=checkpointing)
    return make_plan(strategy, "torchrun", TWO_NODES, shard_degree=shard_degree, memory=memory, **LARGE | changes)


def program(**changes) -> ast.Module:
    files = {f.path: f.content for f in render_bundle(plan(**changes), plan_examples.profile(), beside=("torchtitan",))}
    return ast.parse(files["targets/torchtitan/titan_config.py"])


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_every_argument_is_one_that_torchtitan_takes(checkpointing):
    tree = program(checkpointing=checkpointing)
    origin = {
        alias.name: f"{node.module}:{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module.startswith("torchtitan")
        for alias in node.names
    }
    assert set(origin.values()) <= set(LISTED)
    checked = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
        if isinstance(called, ast.Name) and called.id in origin:
            taken = LISTED[origin[called.id]]
            unknown = {keyword.arg for keyword in node.keywords} - set(taken)
            assert not unknown or "**kwargs" in taken, called.id
            checked += 1
    assert checked >= 15


def keywords(tree: ast.Module, name: str) -> dict[str, object]:
    (call,) = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name]
    return {k.arg: ast.literal_eval(k.value) for k in call.keywords}


def test_the_batch_and_the_mesh_are_the_plans():
    tree, wanted = program(), plan()
    training, mesh = keywords(tree, "TrainingConfig"), keywords(tree, "ParallelismConfig")
    assert training["local_batch_size"] == wanted.batch.micro_batch_size
    # 16 devices, two micro-batches of one sequence
    assert training["global_batch_size"] == 16 * 2 * 1
    assert training["mixed_precision_param"] == "bfloat16"
    assert (mesh["data_parallel_replicate_degree"], mesh["data_parallel_shard_degree"]) == (2, 8)
    assert keywords(program(strategy="fsdp2", shard_degree=16), "ParallelismConfig")["data_parallel_shard_degree"] == 16


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"precision": "fp16"}, "bf16 or fp32"),
        ({"model": large_model().model_copy(update={"num_experts": 8, "num_experts_per_token": 2})}, "Llama-like"),
        ({"model": large_model().model_copy(update={"attention_bias": True})}, "Llama-like"),
        ({"device_kind": "cpu"}, "accelerators only"),
    ],
    ids=["fp16", "experts", "biases", "cpu"],
)
def test_what_it_cannot_express_is_refused_with_the_reason(changes, reason):
    with pytest.raises(EmitError, match=reason) as caught:
        choose_targets(plan(**changes), ("torchtitan",))
    assert caught.value.hint.startswith("the nearest target that can: ")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_start_script_starts_torchtitans_module_with_the_tokenizer(tmp_path):
    bundle = tmp_path / "b"
    write_bundle(render_bundle(plan(), plan_examples.profile(), beside=("torchtitan",)), bundle)
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nprintf \'%s\\0\' "$@" "$PYTHONPATH" "$TOKENIZER" "$STRATADVISOR_RUN_DIR"\n')
    python.chmod(0o755)
    script = bundle / "targets" / "torchtitan" / "launch.sh"

    def start(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), "NNODES": "1"} | variables
        command = ["bash", str(script), "--training.steps", "7"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    done = start(TOKENIZER=str(tmp_path))
    assert done.returncode == 0, done.stderr
    *told, path, tokenizer, folder = done.stdout.split("\0")[:-1]
    module = ["-m", "torchtitan.train", "--module", "titan_config", "--config", "planned", "--training.steps", "7"]
    assert told[-len(module) :] == module
    assert path == str(script.parent)
    assert tokenizer == str(tmp_path)
    assert folder == str(bundle / "run")
    for variables in ({}, {"TOKENIZER": "/nowhere"}):
        refused = start(**variables)
        assert refused.returncode == 2
        assert "TOKENIZER" in refused.stderr
