"""One model on several clusters."""

from __future__ import annotations

import json

import pytest

from stratadvisor import comparison, pipeline
from stratadvisor.cli import run
from stratadvisor.errors import UsageError


def workload():
    shape = pipeline.resolve_model(model_size="1B", model=None)
    return pipeline.make_workload(shape, global_batch_size=256, total_tokens="1B")


def test_cost_is_devices_times_hours_times_price():
    clusters = tuple(comparison.read_cluster(c) for c in ("4xA100-80GB", "8xA100-80GB"))
    for entry, price in zip(comparison.compare(clusters, workload(), (2.0, 3.0)), (2.0, 3.0), strict=True):
        assert entry.plan is not None
        p = entry.plan.predicted
        assert p.cost is not None
        hours = p.run_seconds.likely / 3600
        assert p.cost.likely == pytest.approx(entry.plan.parallelism.world_size * hours * price, rel=1e-6)


def test_more_hardware_never_makes_the_run_longer():
    name, profile = comparison.read_cluster("2x8xA100-80GB@100Gb/s")
    base, *more = comparison.compare(((name, profile), *comparison.variations(name, profile)), workload())
    assert [e.name for e in more] == [f"{name} + 1 node", f"{name}, network x 2", f"{name}, memory x 2"]
    assert base.plan is not None
    for entry in more:
        assert entry.plan is not None
        # the planner prefers a simpler strategy within a tenth
        assert entry.plan.predicted.run_seconds.likely <= 1.11 * base.plan.predicted.run_seconds.likely


def test_a_node_more_without_a_known_network_says_what_it_assumes():
    name, profile = comparison.read_cluster("8xA100-80GB")
    assert "25 GB/s" in comparison.variations(name, profile)[0][0]


def test_a_cluster_that_cannot_hold_the_model_has_a_reason(capsys):
    assert run(["compare", "--model-size", "70B", "8xH100-80GB", "1xT4", "--json", "--method", "qlora"]) == 0
    good, bad = json.loads(capsys.readouterr().out)["clusters"]
    assert good["plan"] is not None
    assert bad["plan"] is None or bad["plan"]["warnings"]


def test_prices_are_one_for_all_or_one_for_each():
    clusters = tuple(comparison.read_cluster(c) for c in ("1xT4", "2xT4", "4xT4"))
    with pytest.raises(UsageError, match="2 prices for 3 clusters"):
        comparison.compare(clusters, workload(), (1.0, 2.0))


def test_the_screen_names_ratio_and_cost(capsys):
    arguments = ["compare", "--model-size", "1B", "4xA100-80GB", "8xA100-80GB", "--price", "2", "--what-if"]
    assert run(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "what a little more of the first would buy" in out
    assert "cost" in out
    assert "memory x 2" in out
