"""Replicas that run on their own: how far apart they are, what they share, how they end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_bundle import events, group, losses
from runtime_jobs import NODES, codes, output, run_jobs

pytestmark = pytest.mark.process
STEPS, INTERVAL, DELAY = 24, 6, 2
RATE, CLIP = 0.5, 0.2
LATE = {
    "engine": "hierarchical",
    "sync_interval_steps": INTERVAL,
    "settings": NODES | {"delay_steps": DELAY},
    "learning_rate": RATE,
    "gradient_clip_norm": CLIP,
    "total_steps": 0,
    "warmup_steps": 0,
}
STREAMING = {
    "engine": "diloco",
    "sync_interval_steps": 6,
    "settings": {"fragments": 3, "delay_steps": 1, "outer_learning_rate": 0.7, "outer_momentum": 0.5},
}
DENSE_STEPS = 6
LARGER = {"engine": "ddp", "sequence_length": 32, "learning_rate": 0.3, "gradient_clip_norm": 0.0}
LOW_RANK = {"compression": "powersgd", "settings": {"powersgd_rank": 4, "powersgd_start_step": DENSE_STEPS}}
ONE_NODE = [group(devices_per_node=2, micro_batch_size=2, gradient_accumulation_steps=2, batch_per_device=4)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    stop = [{"steps": 6, "signal": int(signal.SIGTERM), "to": [1]}]
    together: dict[str, Any] = {"engine": "hierarchical", "sync_interval_steps": 3, "groups": ONE_NODE}
    run_jobs(
        folder,
        [
            {"name": "late", "steps": STEPS, "config": LATE},
            {"name": "late_bf16", "steps": STEPS, "config": LATE | {"compression": "bf16"}},
            {"name": "streaming", "steps": STEPS, "config": STREAMING},
            {"name": "streaming_int8", "steps": STEPS, "config": STREAMING | {"compression": "int8"}},
            {"name": "dense", "steps": STEPS, "program": "default", "config": LARGER},
            {"name": "low_rank", "steps": STEPS, "program": "default", "config": LARGER | LOW_RANK},
            {"name": "statistics", "steps": 6, "config": LATE, "program": "batch_norm"},
            {"name": "statistics", "steps": 12, "options": ["--resume"], "program": "batch_norm"},
            {"name": "stopped", "steps": 1_000_000, "config": together, "events": stop},
            {"name": "stopped_streaming", "steps": 1_000_000, "config": STREAMING, "events": stop},
        ],
    )
    return folder


def state(bundle: Path, name: str, step: int = STEPS) -> dict[str, Any]:
    path = bundle / "run" / "checkpoints" / f"step-{step:08d}" / f"{name}.pt"
    found: dict[str, Any] = torch.load(path, weights_only=True)
    return found


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.reshape(-1).float() for t in tensors.values()])


@pytest.mark.parametrize("name", ["late", "late_bf16"])
def test_nodes_that_meet_late_are_at_most_their_own_steps_apart(runs: Path, name: str) -> None:
    assert codes(runs / name) == [0, 0], output(runs / name)
    first, second = (state(runs / name, f"rank-{rank}")["parameters"] for rank in (0, 1))
    apart = float((first - second).norm())
    # each is the mean of DELAY steps ago and its own steps since; a step is at most the rate times the clipped norm
    assert 0 < apart <= 2 * DELAY * RATE * CLIP * 1.001


def test_the_saved_model_is_the_mean_by_shares(runs: Path) -> None:
    first, second = (state(runs / "late", f"rank-{rank}")["parameters"] for rank in (0, 1))
    saved = flat(state(runs / "late", "state")["model"])
    assert torch.allclose(saved, (first + second) / 2, atol=1e-6)  # two weights of a mean over tokens: 1 each


def test_late_meetings_cost_little(runs: Path) -> None:
    found, rounded = losses(runs / "late"), losses(runs / "late_bf16")
    assert found[-1] < found[0]
    assert rounded == pytest.approx(found, abs=0.02)
    assert rounded != pytest.approx(found, abs=1e-7)


@pytest.mark.parametrize("name", ["streaming", "streaming_int8"])
def test_pieces_of_the_model_are_exchanged_in_turn(runs: Path, name: str) -> None:
    assert codes(runs / name) == [0, 0], output(runs / name)
    ranks = [state(runs / name, f"rank-{rank}")["parameters"] for rank in (0, 1)]
    shared = state(runs / name, "state")
    assert torch.equal(flat(shared["model"]), shared["outer_weights"])
    assert not torch.equal(ranks[0], ranks[1])  # each has the steps since the snapshots to itself
    waits = [event["step"] for event in events(runs / name) if event["communication_seconds"] > 0]
    # launched one step before they are due, applied after 2, 4 and 6 steps of every 6
    assert waits == list(range(1, STEPS + 1))
    assert losses(runs / name)[-1] < losses(runs / name)[0]


def test_gradients_of_low_rank_train_like_dense_ones(runs: Path) -> None:
    assert codes(runs / "low_rank") == [0, 0], output(runs / "low_rank")
    dense, found = losses(runs / "dense"), losses(runs / "low_rank")
    assert found[:DENSE_STEPS] == pytest.approx(dense[:DENSE_STEPS], abs=1e-4)
    assert found != pytest.approx(dense, abs=1e-4)
    fallen = dense[0] - dense[-1]
    assert fallen > 0.5
    assert found[0] - found[-1] > 0.5 * fallen  # half of each gradient, a mean for a sum say, would not get so far


def test_running_statistics_are_shared(runs: Path) -> None:
    assert codes(runs / "statistics") == [0, 0], output(runs / "statistics")
    model = state(runs / "statistics", "state", 12)["model"]
    assert model["norm.running_mean"].abs().max() > 0
    assert "damaged" not in output(runs / "statistics")  # both nodes wrote the same file


@pytest.mark.parametrize("name", ["stopped", "stopped_streaming"])
def test_one_rank_that_is_asked_to_stop_stops_all(runs: Path, name: str) -> None:
    assert codes(runs / name) == [0, 0], output(runs / name)
    (end,) = events(runs / name, "end")
    assert end["reason"] == "interrupted"
    last = events(runs / name)[-1]["step"]
    assert state(runs / name, "state", last)
