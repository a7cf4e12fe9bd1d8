"""What is planned for somebody who names no model."""

from __future__ import annotations

import pytest

from stratadvisor import comparison, pipeline, usual_model
from stratadvisor.errors import NoFeasiblePlanError

CLUSTERS = ("1xT4", "8xA100-80GB")


def longest_seconds(profile, size: str) -> float:
    workload = pipeline.make_workload(pipeline.resolve_model(model_size=size, model=None))
    try:
        return pipeline.recommend(profile, workload).plan.predicted.run_seconds.likely
    except NoFeasiblePlanError:
        return float("inf")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_model_is_the_largest_within_a_week(cluster):
    _, profile = comparison.read_cluster(cluster)
    shape, said = usual_model.largest_usual_model(profile, pipeline.make_workload)
    sizes = usual_model.SIZES
    chosen = next(s for s in sizes if pipeline.resolve_model(model_size=s, model=None) == shape)
    assert f"planning {chosen}," in said
    week = 7 * 24 * 3600
    assert longest_seconds(profile, chosen) <= week
    if chosen != sizes[-1]:
        assert longest_seconds(profile, sizes[sizes.index(chosen) + 1]) > week


def test_where_nothing_trains_in_a_week_the_smallest_is_planned_and_said(monkeypatch):
    monkeypatch.setattr(usual_model, "LONGEST_RUN_SECONDS", 1e-6)
    _, profile = comparison.read_cluster("1xT4")
    shape, said = usual_model.largest_usual_model(profile, pipeline.make_workload)
    assert shape == pipeline.resolve_model(model_size=usual_model.SIZES[0], model=None)
    assert "the smallest" in said


def test_sizes_ascend_and_each_has_a_shape():
    counts = [pipeline.resolve_model(model_size=s, model=None).num_parameters for s in usual_model.SIZES]
    assert counts == sorted(set(counts))
