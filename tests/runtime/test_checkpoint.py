from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime.checkpoint import Checkpoints, Position
from stratadvisor.runtime.config import TrainingError, parse
from stratadvisor.runtime.distributed import Context
from stratadvisor.runtime.integrity import write_tensors

CONTEXT = Context(
    rank=0,
    local_rank=0,
    world_size=1,
    device=torch.device("cpu"),
    node_of_rank=(0,),
    group_of_rank=(0,),
    batch_of_rank=(4,),
    micro_batches=2,
)


def checkpoints(directory: Path, engine: str = "ddp", world_size: int = 1) -> Checkpoints:
    return Checkpoints(directory, parse(configuration(engine=engine)), replace(CONTEXT, world_size=world_size))


def writer(value: float) -> object:
    return lambda directory: write_tensors(directory / "state.pt", {"value": torch.tensor(value)})


def test_the_newest_is_found_and_only_two_are_kept(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.latest() is None
    for step in (5, 10, 15):
        kept.save(Position(step, step * 8), writer(step))
    found = kept.latest()
    assert found is not None
    path, position = found
    assert position == Position(15, 120)
    assert torch.load(path / "state.pt", weights_only=True)["value"] == 15
    assert sorted(p.name for p in kept.folder.iterdir()) == ["step-00000010", "step-00000015"]


def test_a_checkpoint_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    kept.save(Position(5, 40), writer(5))

    def fail(directory: Path) -> None:
        (directory / "state.pt").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.save(Position(10, 80), fail)
    found = kept.latest()
    assert found is not None
    assert found[1].step == 5
    kept.save(Position(15, 120), writer(15))  # and its remains go with the next one
    assert sorted(p.name for p in kept.folder.iterdir()) == ["step-00000005", "step-00000015"]


def test_writing_a_step_again_replaces_it(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    for value in (1.0, 2.0):
        path = kept.save(Position(5, 40), writer(value))
    assert torch.load(path / "state.pt", weights_only=True)["value"] == 2.0


def test_states_of_each_rank_need_as_many_ranks_again(tmp_path: Path) -> None:
    checkpoints(tmp_path, engine="diloco", world_size=1).save(Position(5, 40), writer(5))
    with pytest.raises(TrainingError, match="was written by 1 processes and diloco needs as many again, not 2"):
        checkpoints(tmp_path, engine="diloco", world_size=2).latest()


def test_replicas_may_be_more_or_fewer_when_resumed(tmp_path: Path) -> None:
    checkpoints(tmp_path, world_size=1).save(Position(5, 40), writer(5))
    assert checkpoints(tmp_path, world_size=2).latest() is not None


def test_a_full_or_missing_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the directory should be")
    with pytest.raises(TrainingError, match="cannot be written"):
        checkpoints(tmp_path / "run").save(Position(1, 8), writer(1))
