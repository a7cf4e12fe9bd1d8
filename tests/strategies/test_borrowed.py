from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import cluster, cpu, gpu, nodes, plan_for

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES

MODEL = shape_for_size(350e6)
PLAIN = cluster(nodes(gpu("A100-80GB")))
MEASURED = replace(PLAIN, calibration_time_ratios={("A100-80GB", "ddp"): 2.0, ("A100-80GB", "zero1"): 0.5})


def seconds(where: object, name: str) -> float:
    return next(iter(STRATEGIES[name].candidates(where, Workload(model=MODEL)))).time.step_seconds.likely


def test_a_measured_strategy_takes_its_own_ratio_and_others_the_mean() -> None:
    assert seconds(MEASURED, "ddp") == pytest.approx(2.0 * seconds(PLAIN, "ddp"))
    assert seconds(MEASURED, "zero1") == pytest.approx(0.5 * seconds(PLAIN, "zero1"))
    # sqrt(2.0 * 0.5) = 1
    assert seconds(MEASURED, "fsdp2") == pytest.approx(seconds(PLAIN, "fsdp2"))


def test_another_device_lends_nothing() -> None:
    other = replace(PLAIN, calibration_time_ratios={("H100", "ddp"): 2.0})
    assert seconds(other, "fsdp2") == pytest.approx(seconds(PLAIN, "fsdp2"))


def test_a_slow_measured_run_does_not_drive_the_next_plan_to_what_was_not_measured() -> None:
    where = cluster(nodes(cpu(), per_node=2, intra=1e9), backend="gloo")
    workload = Workload(model=shape_for_size(10e6), sequence_length=256)
    before = plan_for(where, workload, family="synchronous")
    slow = replace(where, calibration_time_ratios={("cpu", before.strategy): 3.0})
    after = plan_for(slow, workload, family="synchronous")
    assert after.strategy == before.strategy
    assert after.predicted.calibrated
    assert after.predicted.step_seconds.likely == pytest.approx(3 * before.predicted.step_seconds.likely)
