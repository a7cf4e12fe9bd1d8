"""Event files, read back with TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stratadvisor.runtime import tensorboard
from stratadvisor.runtime.tensorboard import FOLDER, TAGS, Curves


def event(step: int, **changes: Any) -> dict[str, Any]:
    return {key: float(step) for key in TAGS} | {"step": step, "device_energy_joules": None} | changes


def curves(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory / FOLDER)).Reload()


def test_known_numbers_become_points_and_the_last_step_is_always_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(tensorboard.time, "perf_counter", lambda: now[0])
    writer = Curves(tmp_path)
    assert not writer.problem
    for step in range(1, 5):
        now[0] += 0.6 * tensorboard.INTERVAL_SECONDS  # every second one is too soon
        writer.step(event(step))
    writer.note(2, "a reason")
    writer.close()
    found = curves(tmp_path)
    assert [(point.step, point.value) for point in found.Scalars("training/loss")] == [(1, 1.0), (3, 3.0), (4, 4.0)]
    assert set(found.Tags()["scalars"]) == set(TAGS.values()) - {"joules/devices"}
    assert found.Tensors("changes/text_summary")[0].tensor_proto.string_val == [b"a reason"]


def test_without_tensorboard_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    writer = Curves(tmp_path)
    assert "tensorboard is not installed" in writer.problem
    writer.step(event(1))
    writer.close()
    assert not (tmp_path / FOLDER).exists()
