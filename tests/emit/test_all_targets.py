"""One plan for every target: each file read by the target's own parser, each refusal with its reason and a way out."""

from __future__ import annotations

import ast
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import plan_examples
import pytest
import yaml
from plan_examples import group, large_model, make_plan

from stratadvisor.cli import run
from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.manifest import available_targets
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError

PLAN = make_plan(
    "ddp",
    "torchrun",
    (group("a100", devices=4, device_name="NVIDIA A100-SXM4-80GB", accumulation=2),),
    model=large_model(),
    sequence_length=2048,
    device_kind="cuda",
    precision="bf16",
)
EXPRESSING = {"accelerate", "huggingface", "kubeflow", "lightning", "ray", "slurm", "torchtitan"}
IN_PLACE = {"torchrun", "megatron"}


@pytest.fixture(scope="module", params=["library", "command line"])
def bundle(request, tmp_path_factory) -> Path:
    """The example plan, and a plan that ``recommend --target all`` makes and writes by itself."""
    directory = tmp_path_factory.mktemp("all") / "b"
    if request.param == "library":
        chosen = choose_targets(PLAN, ("all",))
        assert set(chosen.beside) >= EXPRESSING
        write_bundle(render_bundle(PLAN, plan_examples.profile(), beside=chosen.beside), directory)
    else:
        job = ["--model-size", "125M", "--gpus", "4xA100-80GB", "--strategy", "ddp", "--global-batch-size", "512"]
        assert run(["recommend", *job, "--target", "all", "--output", str(directory)]) == 0
    return directory


def of_plan(path: Path) -> tuple[int, int, int]:
    """Return devices, micro-batch and accumulation of the plan of the bundle that a target's file lies in."""
    plan = json.loads((path.parents[2] / "plan.json").read_text())
    batch = plan["batch"]
    return plan["parallelism"]["world_size"], batch["micro_batch_size"], batch["gradient_accumulation_steps"]


@pytest.fixture
def clean_process(monkeypatch):
    """Leave neither the variables nor the state that a framework's arguments set."""
    state = pytest.importorskip("accelerate.state")
    before = dict(os.environ)
    monkeypatch.setattr(sys, "path", list(sys.path))
    state.AcceleratorState._reset_state(True)
    yield
    state.AcceleratorState._reset_state(True)
    os.environ.clear()
    os.environ.update(before)


def accelerates(path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    given = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    assert launch._validate_launch_command(given)[0].num_processes == of_plan(path)[0] == 4


def trainers(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    given = json.loads(path.read_text()) | {"use_cpu": True, "output_dir": str(path.parent / "out")}
    given.pop("ddp_backend", None)  # no GPU is needed to judge the rest
    read = transformers.TrainingArguments(**given)
    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == of_plan(path)[1:]


def lightnings(path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    given = json.loads(path.read_text()) | {"accelerator": "cpu"}
    assert lightning.Trainer(**given, enable_checkpointing=False).accumulate_grad_batches == of_plan(path)[2]


def rays(path: Path) -> None:
    pytest.importorskip("ray.train")
    assert runpy.run_path(str(path))["scaling"]().num_workers == of_plan(path)[0]


def kubernetes(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["kind"] in ("TrainJob", "PyTorchJob")  # keys: test_targets_kubeflow.py


def titans(path: Path) -> None:
    listed = json.loads((Path(__file__).parent / "torchtitan_fields.json").read_text())["parameters"]
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("torchtitan"):
            assert {f"{node.module}:{alias.name}" for alias in node.names} <= set(listed)


def python(path: Path) -> None:
    compile(path.read_text(), str(path), "exec")


def shell(path: Path) -> None:
    if shutil.which("bash"):
        subprocess.run(["bash", "-n", str(path)], check=True, timeout=300)


def prose(path: Path) -> None:
    assert path.read_text().startswith("# ")


PARSERS: dict[str, Callable[[Path], None]] = {
    "accelerate/accelerate.yaml": accelerates,
    "huggingface/training_arguments.json": trainers,
    "lightning/trainer.json": lightnings,
    "ray/train_ray.py": rays,
    "kubeflow/trainjob.yaml": kubernetes,
    "kubeflow/pytorchjob.yaml": kubernetes,
    "torchtitan/titan_config.py": titans,
    ".py": python,
    ".sh": shell,
    ".sbatch": shell,
    ".md": prose,
}


@pytest.mark.usefixtures("clean_process")
def test_every_file_of_every_target_is_read_by_the_targets_own_parser(bundle):
    files = [path for path in (bundle / "targets").rglob("*") if path.is_file()]
    assert {path.relative_to(bundle / "targets").parts[0] for path in files} >= EXPRESSING
    for path in files:
        name = str(path.relative_to(bundle / "targets"))
        parser = PARSERS.get(name, PARSERS.get(path.suffix))
        assert parser is not None, f"nobody reads {name}"
        parser(path)


@pytest.mark.parametrize("name", available_targets())
def test_a_target_expresses_the_plan_or_says_why_not_and_which_can(name):
    if name in EXPRESSING | IN_PLACE:
        chosen = choose_targets(PLAN, (name,))
        assert name in (*chosen.beside, chosen.own)
        return
    with pytest.raises(EmitError, match=f"the target '{name}' cannot express the strategy 'ddp'") as caught:
        choose_targets(PLAN, (name,))
    able = caught.value.hint.removeprefix("the nearest target that can: ").split(";")[0]
    assert able in EXPRESSING | IN_PLACE
