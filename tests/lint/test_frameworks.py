"""The frameworks' own parsers judge the examples: what we call an error they refuse, what we call good they take."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from lint_examples import CASES, config

from stratadvisor.lint.known import known
from stratadvisor.lint.run import check_file

DEEPSPEED = """
import copy, json, logging, sys
import deepspeed, torch
from deepspeed.runtime.config import DeepSpeedConfig

logging.disable(logging.CRITICAL)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False, verbose=False)


class World:
    def __init__(self, size):
        self.size = size

    def get_data_parallel_world_size(self):
        return self.size


def refused(content, world, judge):
    try:
        DeepSpeedConfig(copy.deepcopy(content), mpu=World(world))
        if judge == "engine":
            model = torch.nn.Linear(4, 4)
            deepspeed.initialize(model=model, model_parameters=model.parameters(), config=copy.deepcopy(content))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


answers = {name: refused(*asked) for name, asked in json.load(sys.stdin).items()}
print("ANSWERS" + json.dumps(answers))
"""

TRANSFORMERS = """
import json, logging, sys, warnings
from transformers import TrainingArguments

warnings.simplefilter("ignore")


def refused(content, world, judge):
    try:
        TrainingArguments(**{"use_cpu": True, **content})
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


answers = {name: refused(*asked) for name, asked in json.load(sys.stdin).items()}
print("ANSWERS" + json.dumps(answers))
"""

LIGHTNING = """
import json, logging, sys, warnings
import lightning

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def refused(content, world, judge):
    try:
        lightning.Trainer(**content)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


answers = {name: refused(*asked) for name, asked in json.load(sys.stdin).items()}
print("ANSWERS" + json.dumps(answers))
"""

ACCELERATE = """
import json, os, sys, tempfile, warnings
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_multi_gpu_env

warnings.simplefilter("ignore")
clean = dict(os.environ)


def refused(content, world, judge):
    os.environ.clear()
    os.environ.update(clean)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(content)
        file.flush()
        try:
            arguments = launch_command_parser().parse_args(["--config_file", file.name, "train.py"])
            arguments, _, _ = _validate_launch_command(arguments)
            arguments.main_process_port = 0
            environment = prepare_multi_gpu_env(arguments)
            if arguments.use_fsdp:
                os.environ.update(environment)
                for name in ("SYNC_MODULE_STATES", "CPU_RAM_EFFICIENT_LOADING"):  # they would ask for a GPU
                    os.environ[f"FSDP_{name}"] = "false"
                FullyShardedDataParallelPlugin()
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


answers = {name: refused(*asked) for name, asked in json.load(sys.stdin).items()}
print("ANSWERS" + json.dumps(answers))
"""

PROGRAMS = {
    "deepspeed": DEEPSPEED,
    "transformers": TRANSFORMERS,
    "lightning": LIGHTNING,
    "accelerate": ACCELERATE,
}
NOT_HERE = {
    "PL210-0": "needs a GPU",
    "PL210-1": "needs a GPU",
    "PL204-0": "",
    "PL104-0": "strategies as mappings are LightningCLI's",
    "HF209-0": "the argument starts the DeepSpeed integration, which is judged by its own table",
    "HF209-1": "the argument starts the DeepSpeed integration, which is judged by its own table",
    "DS211-0": "only libraries read it",
}


WORLDS = {"DS201-1": 8}
"""Ranks to judge with, where the check itself is told none."""


def asked_of(kind: str) -> dict[str, tuple[object, int, str]]:
    asked = {}
    for name, _, example in CASES:
        if example.kind != kind or NOT_HERE.get(name):
            continue
        for which in ("bad", "good"):
            if which == "bad" and example.judge == "elsewhere":
                continue
            content = config(example, which)
            text = yaml.safe_dump(content) if kind == "accelerate" else content
            asked[f"{name} {which}"] = (text, example.options.get("world_size", WORLDS.get(name, 1)), example.judge)
    return asked


LAUNCHED = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
)


def environment_of(kind: str, folder: Path) -> dict[str, str]:
    """Return an environment in which nothing looks like a running job; only DeepSpeed's engine wants a rank."""
    clean = {k: v for k, v in os.environ.items() if k not in LAUNCHED and not k.startswith(("ACCELERATE_", "FSDP_"))}
    clean |= {"DS_ACCELERATOR": "cpu", "HF_HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    return clean | ({"LOCAL_RANK": "0"} if kind == "deepspeed" else {})


def judged(kind: str, asked: dict[str, tuple[object, int, str]], folder: Path) -> dict[str, str]:
    """Return what a framework says to each configuration: empty, or why it refuses it."""
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    if importlib.metadata.version(kind) != known(kind).version:
        pytest.skip(f"the rules are about {kind} {known(kind).version}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[kind]],
        input=json.dumps(asked),
        cwd=folder,
        env=environment_of(kind, folder),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, str] = json.loads(done.stdout[done.stdout.rindex("ANSWERS") + len("ANSWERS") :])
    assert set(answers) == set(asked)
    return answers


@pytest.mark.process
@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_frameworks_refuse_the_bad_and_take_the_good(kind, tmp_path):
    asked = asked_of(kind)
    answers = judged(kind, asked, tmp_path)
    wrong = {}
    for name, (_, _, judge) in asked.items():
        should_refuse = name.endswith(" bad") and judge in ("parser", "engine")
        if bool(answers[name]) != should_refuse:
            wrong[name] = answers[name] or "taken"
    assert wrong == {}


TOTALS, MICROS, STEPS, RANKS = (None, 0, 1, 3, 8, 12, 24), (None, -1, 1, 2, 4), (None, 0, 1, 2, 3), (1, 2, 4)


@pytest.mark.process
def test_deepspeed_agrees_on_every_batch(tmp_path):
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    asked: dict[str, tuple[object, int, str]] = {}
    for values in itertools.product(TOTALS, MICROS, STEPS):
        content = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        for world in RANKS:
            asked[f"{values} {world}"] = (content, world, "parser")
    answers = judged("deepspeed", asked, tmp_path)
    file = tmp_path / "ds.json"
    differ = {}
    for name, (content, world, _) in asked.items():
        file.write_text(json.dumps(content))
        ours = [
            f.message for f in check_file(file, kind="deepspeed", world_size=world).findings if f.severity == "error"
        ]
        if bool(ours) != bool(answers[name]):
            differ[name] = (ours, answers[name])
    assert differ == {}
    assert 0 < sum(map(bool, answers.values())) < len(answers)
