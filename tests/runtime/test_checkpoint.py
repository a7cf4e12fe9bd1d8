from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime.checkpoint import CheckpointError, Checkpoints, Position
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


def damage_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = checkpoints(tmp_path)
    for step in (5, 10):
        path = kept.save(Position(step, step * 8), writer(step))
    damage_file(path / "state.pt")
    found = kept.latest()
    assert found is not None
    assert found[1] == Position(5, 40)
    assert "step-00000010 is damaged (state.pt does not hold the bytes that were written)" in capsys.readouterr().out
    assert sorted(p.name for p in kept.folder.iterdir()) == ["damaged-step-00000010", "step-00000005"]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("state.pt", b"", "state.pt has 0 bytes of"),
        ("state.pt", None, "state.pt is missing"),
        ("meta.json", b"{", "meta.json cannot be read"),
        ("state.pt.sum", b"{}", "state.pt.sum has 2 bytes of"),
    ],
)
def test_when_nothing_whole_is_left_that_is_said(tmp_path: Path, name: str, content: bytes | None, text: str) -> None:
    kept = checkpoints(tmp_path)
    path = kept.save(Position(5, 40), writer(5))
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(TrainingError, match=f"{text}.*there is no older one: put a copy back, or start without"):
        kept.latest()


def test_a_run_that_begins_anew_does_not_take_an_older_one_for_its_own(tmp_path: Path) -> None:
    for expected in ("checkpoints.1", "checkpoints.2"):
        old = checkpoints(tmp_path)
        old.save(Position(50, 400), writer(50))
        fresh = checkpoints(tmp_path)
        fresh.begin_anew()
        assert fresh.latest() is None
        assert (tmp_path / expected / "step-00000050" / "meta.json").is_file()
    fresh.save(Position(5, 40), writer(5))
    found = fresh.latest()
    assert found is not None
    assert found[1].step == 5


def test_a_disk_that_fills_up_leaves_earlier_checkpoints_alone(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    kept.save(Position(5, 40), writer(5))

    def fill(directory: Path) -> None:
        (directory / "part").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="step-00000010 cannot be written: No space left on device"):
        kept.save(Position(10, 80), fill)
    assert [p.name for p in kept.folder.iterdir()] == ["step-00000005"]
