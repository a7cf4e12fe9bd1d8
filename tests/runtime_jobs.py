"""Training jobs for ``runtime_ranks.py``, and what came of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from runtime_bundle import TIMEOUT_SECONDS, environment, group, make_config

STEPS = 50
RANKS = Path(__file__).resolve().parent / "runtime_ranks.py"


def one(**changes: Any) -> dict[str, Any]:
    return group(devices_per_node=1, **changes)


WHOLE = one(micro_batch_size=8, gradient_accumulation_steps=1, batch_per_device=8)
LONG = one(micro_batch_size=2, gradient_accumulation_steps=3, batch_per_device=5)
SHORT = one(micro_batch_size=3, gradient_accumulation_steps=1, batch_per_device=3)
IN_STEP = one(micro_batch_size=1, gradient_accumulation_steps=3, batch_per_device=3)
"""As SHORT, in as many micro-batches as LONG."""
NODES = {"ranks_per_node": 1}
BASE = {
    "optimizer": "sgd",
    "learning_rate": 0.5,
    "total_steps": STEPS,
    "warmup_steps": 5,
    "groups": [LONG, SHORT],
    "sequence_length": 12,
    "gradient_clip_norm": 0.2,
}


def run_jobs(folder: Path, jobs: list[dict[str, Any]]) -> None:
    """Make the configurations that are not there yet and run the jobs in order."""
    for job in jobs:
        bundle = folder / job.pop("name")
        changes = job.pop("config", {})
        if not bundle.exists():
            make_config(bundle, **(BASE | changes))
        job["bundle"] = str(bundle)
        job["arguments"] = [
            "--steps",
            str(job.pop("steps", STEPS if "script" not in job else 20)),
            *job.pop("options", []),
        ]
        job.setdefault("program", "ragged")
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    done = subprocess.run(
        [sys.executable, str(RANKS), str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def kill(steps: int, *ranks: int) -> list[dict[str, Any]]:
    """SIGKILL to the ranks, or to all, after so many steps."""
    return [{"steps": steps, "signal": int(signal.SIGKILL)} | ({"to": ranks} if ranks else {})]


def output(bundle: Path, rank: int = 0) -> str:
    return (bundle / f"rank-{rank}.log").read_text()


def codes(bundle: Path) -> list[int]:
    found: list[int] = json.loads((bundle / "codes.json").read_text())
    return found


def weights(bundle: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    state = torch.load(bundle / "run" / "checkpoints" / f"step-{step:08d}" / "state.pt", weights_only=True)
    found: dict[str, torch.Tensor] = state["model"]
    return found


def furthest(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)
