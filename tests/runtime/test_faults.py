"""What goes wrong during training: nothing saved is lost, the next start goes on, the message names the cause."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from runtime_bundle import events, group, losses
from runtime_jobs import codes, furthest, kill, output, run_jobs, weights

pytestmark = pytest.mark.process
STEPS = 30
EACH = group(devices_per_node=2, micro_batch_size=2, gradient_accumulation_steps=2, batch_per_device=4)
DDP = {"engine": "ddp", "groups": [EACH], "checkpoint_interval_steps": 4, "total_steps": STEPS}
ASYNC = DDP | {"engine": "async_sgd", "settings": {"staleness_bound": 3, "reconnect_seconds": 2}}
LOCAL = ASYNC | {"sync_interval_steps": 3}
ENDLESS = 1_000_000
LIMIT_BYTES = 100_000
"""Less than a checkpoint of the model that is used with it, more than the log of its steps."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    again: dict[str, Any] = {"steps": STEPS, "options": ["--resume"]}
    frozen = [
        {"steps": 5, "signal": int(signal.SIGSTOP), "to": [1]},
        {"seconds": 2.0, "signal": int(signal.SIGCONT), "to": [1]},
    ]
    replaced = [
        *kill(5, 1),
        {"text": "worker 1 is gone", "log": 0, "join": True},
        {"text": "worker 1 joins", "log": 0, "signal": int(signal.SIGTERM), "to": [0]},
    ]
    large = {"program": "default", "config": DDP | {"sequence_length": 32, "total_steps": 12}}
    run_jobs(
        folder,
        [
            {"name": "whole", "steps": STEPS, "config": DDP},
            {"name": "worker", "steps": STEPS, "config": DDP, "events": kill(10, 1)},
            {"name": "worker", **again},
            {"name": "first", "steps": STEPS, "config": DDP, "events": kill(10, 0)},
            {"name": "first", **again},
            {"name": "frozen", "steps": STEPS, "config": DDP, "events": frozen},
            {"name": "async_worker", "steps": STEPS, "config": ASYNC, "events": kill(10, 1)},
            {"name": "async_server", "steps": STEPS, "config": ASYNC, "events": kill(10, 0)},
            {"name": "async_server", **again},
            {"name": "replaced", "steps": ENDLESS, "config": ASYNC | {"total_steps": 0}, "events": replaced},
            {"name": "local_worker", "steps": STEPS, "config": LOCAL, "events": kill(10, 1)},
            {"name": "local_server", "steps": STEPS, "config": LOCAL, "events": kill(10, 0)},
            {"name": "local_server", **again},
            {"name": "local_replaced", "steps": ENDLESS, "config": LOCAL | {"total_steps": 0}, "events": replaced},
            {"name": "full_whole", "steps": 12, **large},
            {"name": "full", "steps": 4, **large},
            {"name": "full", "steps": 12, "options": ["--resume"], "limit_file_bytes": LIMIT_BYTES, **large},
        ],
    )
    return folder


def last_losses(bundle: Path) -> list[float]:
    """Return the losses by step; of a step done twice the later one."""
    found = {event["step"]: event["loss"] for event in events(bundle)}
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[step] for step in sorted(found)]


@pytest.mark.parametrize(("name", "survivor"), [("worker", 0), ("first", 1)])
def test_a_lost_rank_is_named_and_the_run_goes_on(runs: Path, name: str, survivor: int) -> None:
    said = output(runs / name, survivor)
    assert f"rank {survivor}: error: another process of this run ended or cannot be reached" in said
    assert "--resume goes on from the newest checkpoint" in said
    assert "Traceback" not in said
    assert codes(runs / name) == [0, 0]  # of the resumed run
    assert last_losses(runs / name) == pytest.approx(losses(runs / "whole"), abs=1e-6)
    assert furthest(weights(runs / name, STEPS), weights(runs / "whole", STEPS)) < 1e-6


def test_ranks_wait_for_one_that_is_silent_for_a_while(runs: Path) -> None:
    assert codes(runs / "frozen") == [0, 0]
    assert losses(runs / "frozen") == pytest.approx(losses(runs / "whole"), abs=1e-6)


@pytest.mark.parametrize("name", ["async_worker", "local_worker"])
def test_the_others_make_the_gradients_of_a_lost_worker(runs: Path, name: str) -> None:
    assert codes(runs / name) == [0, -signal.SIGKILL]
    assert "worker 1 is gone" in output(runs / name)
    pushes = [json.loads(line) for line in (runs / name / "run" / "delays.jsonl").read_text().splitlines()]
    assert sum(push.get("steps", 1) for push in pushes) == 2 * STEPS
    assert max(push["staleness"] for push in pushes) <= 3  # the bound
    assert max(push.get("steps", 1) for push in pushes) == (3 if name == "local_worker" else 1)
    assert {push["worker"] for push in pushes[-4:]} == {0}


@pytest.mark.parametrize("name", ["async_server", "local_server"])
def test_a_lost_server_is_named_and_a_new_one_goes_on(runs: Path, name: str) -> None:
    assert "rank 1: error: the server is gone" in output(runs / name, 1)
    assert codes(runs / name) == [0, 0]
    found = {event["step"] for event in events(runs / name)}
    assert found == set(range(1, STEPS + 1))


@pytest.mark.parametrize("name", ["replaced", "local_replaced"])
def test_a_newcomer_takes_the_place_of_a_lost_worker(runs: Path, name: str) -> None:
    bundle = runs / name
    assert codes(bundle) == [0, -signal.SIGKILL, 0], output(bundle) + output(bundle, 2)
    assert "worker 1 of 2 joins" in output(bundle, 2)
    assert not (bundle / "run" / "server.json").exists()
    (end,) = events(bundle, "end")
    assert end["reason"] == "interrupted"


def test_a_full_disk_costs_a_checkpoint_but_no_earlier_one(runs: Path) -> None:
    bundle = runs / "full"
    assert codes(bundle) == [2, 2]
    said = output(bundle)
    assert said.count("warning: the checkpoint") == 1  # of step 8: training went on
    assert "cannot be written: File too large; earlier ones are kept" in said
    assert "rank 0: error: the checkpoint" in said  # of step 12, the last
    assert "Traceback" not in said + output(bundle, 1)
    assert len(last_losses(bundle)) == 12
    assert [p.name for p in (bundle / "run" / "checkpoints").iterdir()] == ["step-00000004"]


def test_training_goes_on_where_the_disk_was_not_full(runs: Path) -> None:
    run_jobs(runs, [{"name": "full", "steps": 12, "options": ["--resume"], "program": "default"}])
    assert codes(runs / "full") == [0, 0]
    assert furthest(weights(runs / "full", 12), weights(runs / "full_whole", 12)) < 1e-6


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(runs: Path) -> None:
    bundle = runs / "worker"
    folder = bundle / "run" / "checkpoints"
    newest, before = folder / f"step-{STEPS:08d}", folder / "step-00000028"
    content = bytearray((newest / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (newest / "state.pt").write_bytes(content)
    assert before.is_dir()
    run_jobs(runs, [{"name": "worker", "steps": STEPS, "options": ["--resume"]}])
    said = output(bundle)
    assert f"{newest} is damaged (state.pt does not hold the bytes that were written): looking for an older one" in said
    assert codes(bundle) == [0, 0]
    assert furthest(weights(bundle, STEPS), weights(runs / "whole", STEPS)) < 1e-6
    assert (folder / f"damaged-{newest.name}").is_dir()
