from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stratadvisor.runtime.own_state import KEPT, OwnState


def taken(folder: Path, steps: int, rank: int = 1) -> float | None:
    found: list[float] = []
    OwnState(folder, rank).take_back(steps, lambda state: found.append(float(state["value"])))
    return found[0] if found else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    own = OwnState(tmp_path, 1)
    for steps in (4, 8, 12):
        own.keep(steps, {"value": torch.tensor(float(steps))})
    OwnState(tmp_path, 11).keep(8, {"value": torch.tensor(-1.0)})
    return tmp_path


def test_the_state_of_the_step_that_counts_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert taken(folder, 8) == 8.0
    assert taken(folder, 8, rank=11) == -1.0
    assert capsys.readouterr().out == ""


def test_else_the_newest_before_it_and_it_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert taken(folder, 11) == 8.0
    assert "worker 1: its optimizer is that of step 8, not 11" in capsys.readouterr().out
    assert taken(folder, 3) is None
    assert "worker 1: its optimizer begins anew at step 3" in capsys.readouterr().out


def test_a_damaged_state_is_named_and_the_one_before_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "worker-1-00000008" / "state.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert taken(folder, 8) == 4.0
    assert "cannot be used (state.pt does not hold the bytes that were written)" in capsys.readouterr().out
    path.unlink()
    assert taken(folder, 8) == 4.0


def test_a_run_that_begins_leaves_nothing_of_an_earlier_one(folder: Path) -> None:
    assert taken(folder, 0) is None
    assert taken(folder, 100) is None
    assert taken(folder, 100, rank=11) == -1.0  # another worker's


def test_only_the_newest_states_are_kept(folder: Path) -> None:
    own = OwnState(folder, 1)
    for steps in range(16, 16 + 4 * KEPT, 4):
        own.keep(steps, {"value": torch.tensor(float(steps))})
    assert len(list(folder.glob("worker-1-*"))) == KEPT
    assert taken(folder, 15) is None
