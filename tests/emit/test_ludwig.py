"""The configuration for Ludwig against the fields of its release (``benchmarks/ludwig_fields.py``)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import plan_examples
import pytest
import yaml
from plan_examples import group, large_model, make_plan, small_model

from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError
from stratadvisor.schema.workload import Workload

LISTED = json.loads((Path(__file__).parent / "ludwig_fields.json").read_text())["sections"]
CARD = {"device_kind": "cuda", "precision": "bf16", "model": large_model()}


def workload(method: str) -> Workload:
    return Workload(model=large_model(), method=method, lora_rank=16, sequence_length=64)


PLANS = {
    "cpu": make_plan("single", "torchrun", (group(devices=1, micro=4, accumulation=2),)),
    "qlora": make_plan(
        "single",
        "torchrun",
        (group("card", devices=1, micro=1, accumulation=16),),
        workload=workload("qlora"),
        memory=plan_examples.MemoryPlan(activation_checkpointing="full"),
        **CARD,
    ),
}


def config(name: str) -> dict[str, object]:
    files = {f.path: f.content for f in render_bundle(PLANS[name], plan_examples.profile(), beside=("ludwig",))}
    return yaml.safe_load(files["targets/ludwig/ludwig.yaml"])


@pytest.mark.parametrize("name", PLANS)
def test_every_key_is_one_that_ludwig_reads(name):
    """Ludwig lets unknown keys pass, so its parser alone would not tell."""
    given = config(name)
    assert set(given) <= set(LISTED[""])
    for section in ("adapter", "quantization", "preprocessing", "trainer"):
        assert set(given.get(section, ())) <= set(LISTED[section])
    for section in ("learning_rate_scheduler", "optimizer", "gradient_clipping"):
        assert set(given["trainer"][section]) <= set(LISTED[f"trainer.{section}"])
    for feature in (*given["input_features"], *given["output_features"]):
        assert set(feature) == {"name", "type", "preprocessing"}
        assert set(feature["preprocessing"]) <= set(LISTED["features.preprocessing"])


def test_the_numbers_are_the_plans():
    trainer = config("qlora")["trainer"]
    # 5000 steps of 16 micro-batches
    assert trainer["train_steps"] == trainer["learning_rate_scheduler"]["t_0"] == 5000 * 16
    assert (trainer["batch_size"], trainer["gradient_accumulation_steps"]) == (1, 16)
    # a quarter of a percent of 5000 steps, in whole steps
    assert trainer["learning_rate_scheduler"]["warmup_fraction"] == 12 / 5000
    # 2e-4 for adapters (arXiv:2305.14314, table 9), down to a tenth: numbers, not what YAML 1.1 makes of 2e-05
    assert trainer["learning_rate"] == 2e-4
    assert trainer["learning_rate_scheduler"]["eta_min"] == pytest.approx(2e-5)
    assert trainer["enable_gradient_checkpointing"] is True
    given = config("qlora")
    assert (given["adapter"]["r"], given["adapter"]["alpha"]) == (16, 32)
    assert (given["quantization"]["bits"], given["quantization"]["bnb_4bit_compute_dtype"]) == (4, "bfloat16")
    assert "adapter" not in config("cpu")
    assert config("cpu")["trainer"]["enable_gradient_checkpointing"] is False


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (make_plan("ddp", "torchrun"), "averages no gradients"),
        (make_plan("single", "torchrun", (group(devices=1),), **CARD), "as fp32"),
        (make_plan("single", "torchrun", (group(devices=1),), workload=workload("lora"), **CARD), "as fp32"),
        (
            make_plan(
                "single",
                "torchrun",
                (group(devices=1),),
                model=small_model().model_copy(update={"learned_positions": True}),
            ),
            "Llama-like",
        ),
    ],
)
def test_what_it_cannot_express_is_refused_with_the_reason(plan, reason):
    with pytest.raises(EmitError, match=reason) as caught:
        choose_targets(plan, ("ludwig",))
    assert caught.value.hint.startswith("the nearest target that can: ")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("variables", "options", "sentence"),
    [
        ({}, ("--data", "DATA"), "set BASE_MODEL to the folder or the name of a model of transformers"),
        ({"BASE_MODEL": "m"}, ("--data", "/nowhere.csv"), "--data: there is no file /nowhere.csv"),
        ({"BASE_MODEL": "m"}, ("--data", "DATA", "--steps", "0"), "--steps must be 1 or more, not 0"),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path, variables, options, sentence):
    write_bundle(render_bundle(PLANS["cpu"], plan_examples.profile(), beside=("ludwig",)), tmp_path / "b")
    data = tmp_path / "data.csv"
    data.write_text("prompt,response\n")
    command = ["bash", str(tmp_path / "b/targets/ludwig/launch.sh")]
    command += [str(data) if word == "DATA" else word for word in options]
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == f"train_ludwig.py: {sentence}\n"
