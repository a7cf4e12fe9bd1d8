"""When a run is given up: by what its steps are predicted to take, or as asked."""

from __future__ import annotations

from pathlib import Path

import plan_examples
import pytest

from stratadvisor.errors import UsageError
from stratadvisor.pipeline import load_cluster
from stratadvisor.schema.plan import Interval, Plan
from stratadvisor.validate.launch import SHORTEST_STALL_SECONDS, Limits
from stratadvisor.validate.run import run_bundle


def slow_plan(low: float, high: float) -> Plan:
    plan = plan_examples.examples()["ddp_cpu"]
    step = Interval(low=low, likely=(low + high) / 2, high=high)
    return plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"step_seconds": step})})


def test_silence_is_a_hang_after_five_steps_or_five_minutes_or_as_asked() -> None:
    assert Limits().silence_seconds(1.0) == SHORTEST_STALL_SECONDS == 300
    assert Limits().silence_seconds(100.0) == 500
    assert Limits(stall_seconds=20.0).silence_seconds(100.0) == 20


@pytest.mark.parametrize(("low", "high", "fewer"), [(200.0, 400.0, "--steps 4, "), (2000.0, 4000.0, "")])
def test_a_run_that_cannot_end_in_time_is_not_started(tmp_path: Path, low: float, high: float, fewer: str) -> None:
    profile = load_cluster(gpus="1x2xT4")
    assert profile is not None
    (tmp_path / "launch.sh").write_text("touch started\n")
    said = r"^12 steps are predicted to take .* longer than the time limit of 30 min"
    with pytest.raises(UsageError, match=said) as seen:
        run_bundle(tmp_path, slow_plan(low, high), profile, steps=12)
    assert seen.value.hint == f"{fewer}--time-limit {12 * high:.0f}, or a smaller model"
    assert [path.name for path in tmp_path.iterdir()] == ["launch.sh"]
