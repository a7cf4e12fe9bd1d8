"""Data that may not leave its node."""

from __future__ import annotations

import pytest

from stratadvisor import pipeline
from stratadvisor.errors import NoFeasiblePlanError, UsageError

SITES = "2x1xRTX3090,1x2xA100-80GB"


def recommend(**options: object):
    shape = pipeline.resolve_model(model_size=options.pop("model_size", "125M"))
    gpus = options.pop("gpus", SITES)
    profile = pipeline.load_cluster(gpus=gpus, inter_node=None if gpus.startswith("2xA") else "100Mb/s")
    return pipeline.recommend(profile, pipeline.make_workload(shape, **options)).plan


def test_every_node_takes_part_and_only_weights_meet():
    plan = recommend(data_stays=True)
    assert (plan.strategy, plan.family, plan.target) == ("federated", "federated", "flower")
    assert "SA2000" in {decision.branch for decision in plan.decisions}
    assert sum(g.num_nodes for g in plan.groups) == 3
    assert plan.parallelism.world_size == 4
    assert plan.synchronization.mode == "local_sgd"
    assert plan.synchronization.sync_interval_steps >= 10
    # the mean itself
    assert plan.settings["outer_learning_rate"] == 1.0
    assert plan.settings["outer_momentum"] == 0.0
    assert {a.strategy for a in plan.alternatives} <= {"federated"}
    assert any("differ" in sentence for sentence in plan.assumptions)


def test_without_the_wish_nobody_is_federated():
    plan = recommend()
    assert plan.strategy != "federated"
    assert "federated" not in {a.strategy for a in plan.alternatives}


def test_on_one_node_nothing_has_to_leave_it():
    assert recommend(data_stays=True, gpus="2xA100-80GB").family != "federated"


def test_a_model_that_no_node_holds_is_refused_instead_of_carrying_data_about():
    with pytest.raises(NoFeasiblePlanError, match="federated averaging"):
        recommend(data_stays=True, model_size="13B")


def test_exactness_and_data_that_stays_contradict_each_other():
    with pytest.raises(UsageError, match="--data-stays and --max-staleness 0 contradict"):
        recommend(data_stays=True, max_staleness_steps=0)
