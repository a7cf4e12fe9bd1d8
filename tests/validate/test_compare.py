"""Predicted beside measured, and the calibration that follows."""

from __future__ import annotations

import json
from statistics import NormalDist

import pytest
from plan_for_tests import small_plan

from stratadvisor.schema.plan import SynchronizationPlan
from stratadvisor.schema.profile import Calibration, ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.validation import ValidationResult
from stratadvisor.validate.calibration import from_result, refusal, spread, timed_seconds
from stratadvisor.validate.compare import comparisons, measure, warmup_steps
from stratadvisor.validate.metrics import RunMetrics, read_metrics


def steps(seconds, losses=None):
    losses = losses or [5.0 - 0.1 * i for i in range(len(seconds))]
    return [
        {
            "event": "step",
            "step": i + 1,
            "loss": losses[i],
            "tokens": 256,
            "step_seconds": s,
            "data_wait_seconds": 0.01,
            "communication_seconds": 0.02,
            "peak_device_bytes": 4e8,
        }
        for i, s in enumerate(seconds)
    ]


def test_the_first_steps_are_left_out_of_timings():
    measured = measure(RunMetrics(steps=steps([9.0, 9.0, 0.2, 0.2, 0.2, 0.2])), small_plan())
    assert measured.step_seconds == 0.2
    assert measured.tokens_per_second == pytest.approx(256 / 0.2)
    assert measured.data_wait_fraction == pytest.approx(0.05)
    assert measured.communication_fraction == pytest.approx(0.1)


@pytest.mark.parametrize(("count", "left_out"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (12, 3)])
def test_warm_up_is_a_quarter_and_at_least_two_of_five(count, left_out):
    assert warmup_steps(count) == left_out


def test_local_steps_are_averaged_over_whole_exchange_cycles():
    plan = small_plan(synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=3))
    # warm-up leaves two out; of the other eight the last six are two cycles of 1, 1, 4
    seconds = [9.0, 9.0, 1.0, 4.0, 1.0, 1.0, 4.0, 1.0, 1.0, 4.0]
    assert measure(RunMetrics(steps=steps(seconds)), plan).step_seconds == pytest.approx(2.0)


def test_a_run_shorter_than_an_exchange_says_so():
    plan = small_plan(synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=50))
    assert any("none was timed" in note for note in measure(RunMetrics(steps=steps([1.0] * 6)), plan).notes)


@pytest.mark.parametrize(
    ("losses", "falling"),
    [([5, 4, 3, 2, 1, 0.5], True), ([1, 1, 1, 2, 2, 2], False), ([5, 4, 3], None)],
)
def test_loss_is_judged_from_six_steps_on(losses, falling):
    assert measure(RunMetrics(steps=steps([1.0] * len(losses), losses)), small_plan()).loss_falling is falling


def test_a_half_written_line_and_foreign_lines_are_ignored(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(s) for s in steps([1.0, 1.0])]
    path.write_text("\n".join(['{"event": "start"}', "noise", "[1]", *lines]) + '\n{"event": "st')
    metrics = read_metrics(path)
    assert metrics.last_step == 2
    assert metrics.start == {"event": "start"}
    assert read_metrics(tmp_path / "absent").last_step == 0


def test_rows_hold_ratio_and_whether_it_lies_inside():
    rows = {r.quantity: r for r in comparisons(small_plan(), measure(RunMetrics(steps=steps([0.3] * 6)), small_plan()))}
    assert rows["step time"].ratio == pytest.approx(3.0)
    assert rows["step time"].inside is False
    assert rows["peak memory per device"].inside is True


def test_on_a_gpu_memory_is_compared_without_the_context_that_the_allocator_does_not_count():
    group = small_plan().groups[0].model_copy(update={"memory_terms_bytes": {"context": 1e8, "parameters": 3e8}})
    rows = {}
    for kind in ("cpu", "cuda"):
        plan = small_plan(device_kind=kind, groups=(group,))
        found = comparisons(plan, measure(RunMetrics(steps=steps([0.1] * 6)), plan))
        rows[kind] = next(r for r in found if r.quantity == "peak memory per device").predicted.likely
    assert rows == {"cpu": 4e8, "cuda": 3e8}


def result(ratio_steps, **changes):
    plan = small_plan()
    rows = comparisons(plan, measure(RunMetrics(steps=steps([ratio_steps] * 6)), plan))
    fields = {
        "strategy": "ddp",
        "outcome": "completed",
        "steps_asked": 6,
        "steps_done": 6,
        "wall_seconds": 9.0,
        "comparisons": rows,
        "step_seconds": (ratio_steps,) * 6,
    }
    return ValidationResult.model_validate(fields | changes)


def profile(*calibrations):
    device = DeviceProfile(index=0, kind="cpu", name="cpu")
    return ClusterProfile(nodes=(NodeProfile(hostname="a", devices=(device,)),), calibrations=calibrations)


def test_a_completed_run_gives_its_ratio():
    calibration = from_result(small_plan(), profile(), result(0.15))
    assert calibration is not None
    assert (calibration.device, calibration.strategy) == ("cpu", "ddp")
    assert calibration.time_ratio == pytest.approx(1.5)


def test_a_corrected_prediction_keeps_the_ratio_to_the_uncorrected_one():
    plan = small_plan()
    plan = plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"calibrated": True})})
    earlier = Calibration(device="cpu", strategy="ddp", time_ratio=2.0)
    calibration = from_result(plan, profile(earlier), result(0.15))
    assert calibration is not None
    assert calibration.time_ratio == pytest.approx(3.0)


@pytest.mark.parametrize("changes", [{"outcome": "failed"}, {"proxy": "fewer layers"}, {"comparisons": ()}])
def test_failed_scaled_down_and_empty_runs_calibrate_nothing(changes):
    assert from_result(small_plan(), profile(), result(0.15, **changes)) is None


def test_an_implausible_ratio_is_not_kept():
    assert from_result(small_plan(), profile(), result(100.0)) is None
    assert "something else was measured" in refusal(small_plan(), result(100.0))


def test_a_steady_run_is_not_refused():
    assert refusal(small_plan(), result(0.15)) == ""


def test_the_spread_is_the_coefficient_of_variation_of_a_normal_distribution():
    normal = NormalDist(mu=2.0, sigma=0.3)
    sample = [normal.inv_cdf((i + 0.5) / 2000) for i in range(2000)]
    assert spread(sample) == pytest.approx(0.3 / 2.0, rel=0.01)


def test_a_run_whose_steps_vary_more_than_a_prediction_claims_is_refused_in_words():
    # after the two of the warm-up the quartiles are 0.1 and 0.5, the median 0.3: 0.4 / 1.349 / 0.3 = 99 %
    unsteady = result(0.3, step_seconds=(9.0, 9.0, 0.1, 0.3, 0.5, 0.1, 0.5))
    assert from_result(small_plan(), profile(), unsteady) is None
    said = refusal(small_plan(), unsteady)
    assert "its steps vary by 99 % " in said.replace("%", " %").replace("  ", " ")
    assert "run it again" in said


def test_one_slow_step_refuses_nothing():
    hiccup = result(0.15, step_seconds=(9.0, 9.0, 0.15, 0.15, 3.0, 0.15, 0.15))
    assert from_result(small_plan(), profile(), hiccup) is not None


def test_steps_with_and_without_an_exchange_are_no_unsteadiness():
    plan = small_plan(synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=2))
    even = result(0.15, step_seconds=(0.1, 0.5) * 6)  # 12 steps, three of warm-up; cycles of 0.6
    assert timed_seconds(plan, even) == pytest.approx([0.3] * 4)
    assert refusal(plan, even) == ""


def test_too_few_steps_are_no_calibration():
    short = result(0.15, step_seconds=(0.15, 0.15, 0.15))
    assert from_result(small_plan(), profile(), short) is None
    assert "ask for more --steps" in refusal(small_plan(), short)


@pytest.mark.parametrize("changes", [{"outcome": "failed"}, {"proxy": "fewer layers"}, {"comparisons": ()}])
def test_of_runs_that_could_not_calibrate_nothing_is_said(changes):
    assert refusal(small_plan(), result(0.15, step_seconds=(), **changes)) == ""
