"""A bundle made by hand: the runtime copied beside train.py, and a configuration of a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2

import stratadvisor.runtime
from stratadvisor.runtime import MODULES_BY_ENGINE

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 600
TINY = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "ffn_hidden_size": 128,
    "vocab_size": 256,
    "max_sequence_length": 64,
}


def group(**changes: Any) -> dict[str, Any]:
    return {
        "num_nodes": 1,
        "devices_per_node": 2,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "batch_per_device": 4,
    } | changes


def configuration(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "strategy": changes.get("engine", "ddp"),
        "engine": "ddp",
        "model": TINY,
        "groups": [group()],
        "sequence_length": 32,
        "learning_rate": 3e-3,
        "total_steps": 1000,
        "seed": 3,
    }
    return config | changes


def make_config(directory: Path, **changes: Any) -> Path:
    """A bundle without program and runtime, for the runtime of this package."""
    directory.mkdir(parents=True)
    (directory / "train_config.json").write_text(json.dumps(configuration(**changes)))
    return directory


def make_bundle(directory: Path, **changes: Any) -> Path:
    config = configuration(**changes)
    source = Path(stratadvisor.runtime.__file__).parent
    runtime = directory / "stratadvisor_runtime"
    runtime.mkdir(parents=True)
    for name in MODULES_BY_ENGINE[config["engine"]]:
        shutil.copy(source / name, runtime / name)
    template = (ROOT / "templates" / "_shared" / "train.py.j2").read_text()
    program = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(template)
    (directory / "train.py").write_text(program.render(plan={"settings": {}}))
    (directory / "train_config.json").write_text(json.dumps(config))
    return directory


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STRATADVISOR_", "MASTER_", "PYTEST_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PYTHONPATH"):
        kept.pop(name, None)
    own = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "300"}
    return kept | own


LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def command(bundle: Path, *arguments: str) -> list[str]:
    return [*LAUNCHER, str(bundle / "train.py"), *arguments]


def train(bundle: Path, *arguments: str, code: int = 0) -> str:
    """Run to the end; return everything it printed."""
    return finish(command(bundle, *arguments), code)


def finish(arguments: list[str], code: int = 0) -> str:
    done = subprocess.run(
        arguments,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    return output


def events(bundle: Path, kind: str = "step", run: str = "run") -> list[dict[str, Any]]:
    lines = (bundle / run / "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def losses(bundle: Path, run: str = "run") -> list[float]:
    return [event["loss"] for event in events(bundle, run=run)]
