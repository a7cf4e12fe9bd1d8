from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fact_builders import candidate, facts_of
from planning_clusters import cluster, gpu, nodes

from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Candidate, Layout


def sized(name: str, memory: float, *, host: float | None = 1000.0) -> NodeClass:
    device = replace(gpu("A100-80GB"), name=name, memory_total_bytes=memory, memory_free_bytes=None)
    return replace(nodes(device, per_node=2), host_memory_bytes=host)


BIG, SMALL = sized("big", 100.0), sized("small", 50.0)


def made(
    *classes: NodeClass, peak: float | tuple[float, ...], host: float = 0.0, run: float = 1.0, **layout: Any
) -> Candidate:
    return candidate("zero3", *classes, peak=peak, host=host, run=run, layout=Layout(**layout))


def test_the_tightest_device_of_the_least_demanding_configuration_counts() -> None:
    facts = facts_of(
        cluster(BIG, SMALL),
        made(BIG, SMALL, peak=(60.0, 60.0), sharding="none"),  # 1.2 on the small one
        made(BIG, peak=70.0, sharding="none"),  # 0.7 where only the big ones take part
        made(BIG, SMALL, peak=(40.0, 30.0), sharding="optimizer"),  # 0.6
        made(BIG, SMALL, peak=(35.0, 25.0), sharding="gradients"),  # 0.5
        made(BIG, SMALL, peak=(10.0, 10.0), sharding="parameters"),  # 0.2
    )
    assert facts["memory.replica_fit_ratio"].value == pytest.approx(0.7)
    assert facts["memory.state_sharded_fit_ratio"].value == pytest.approx(0.5)
    assert facts["memory.fully_sharded_fit_ratio"].value == pytest.approx(0.2)
    assert facts["memory.without_offload_fit_ratio"].value == pytest.approx(0.2)


def test_the_high_end_of_the_prediction_is_held_against_free_memory() -> None:
    # fact_builders: likely is 0.9 of the high end
    free = replace(BIG, device=replace(BIG.device, memory_free_bytes=80.0))
    facts = facts_of(cluster(free), made(free, peak=100.0, sharding="none"))
    assert facts["memory.replica_fit_ratio"].value == pytest.approx(100 / 80)


def test_infeasible_configurations_count_since_the_ratio_says_by_how_much() -> None:
    too_big = replace(made(BIG, peak=250.0, sharding="none"), feasible=False)
    assert facts_of(cluster(BIG), too_big)["memory.replica_fit_ratio"].value == pytest.approx(2.5)


def test_unknown_memory_and_absent_ways_of_dividing_are_unknown_for_different_reasons() -> None:
    blind = replace(BIG, device=replace(BIG.device, memory_total_bytes=None))
    facts = facts_of(cluster(blind), made(blind, peak=10.0, sharding="none"))
    assert facts["memory.replica_fit_ratio"].value is None
    assert "memory of a device" in facts["memory.replica_fit_ratio"].because
    assert "applies" in facts["memory.fully_sharded_fit_ratio"].because


def test_offload_is_held_against_device_and_host() -> None:
    facts = facts_of(
        cluster(BIG),
        made(BIG, peak=150.0, sharding="none"),
        # 2 ranks on a node, 1000 of host memory
        made(BIG, peak=90.0, host=400.0, sharding="gradients", optimizer_offload="cpu"),
        made(BIG, peak=30.0, host=600.0, sharding="parameters", optimizer_offload="cpu", parameter_offload="cpu"),
        made(BIG, peak=120.0, host=10.0, sharding="gradients", optimizer_offload="cpu"),
    )
    assert facts["memory.without_offload_fit_ratio"].value == pytest.approx(1.5)
    assert facts["memory.offload_fit_ratio"].value == pytest.approx(0.3)
    # 2 * 400 / 1000, not the smaller 2 * 10 / 1000 of one that the device cannot hold
    assert facts["memory.offload_host_fit_ratio"].value == pytest.approx(0.8)


def test_host_memory_that_nobody_knows_leaves_offload_open() -> None:
    silent = sized("big", 100.0, host=None)
    facts = facts_of(cluster(silent), made(silent, peak=50.0, host=10.0, optimizer_offload="cpu"))
    assert facts["memory.offload_fit_ratio"].value == pytest.approx(0.5)
    assert facts["memory.offload_host_fit_ratio"].value is None


def test_recomputation_is_compared_in_memory_and_in_time() -> None:
    facts = facts_of(
        cluster(BIG),
        made(BIG, peak=80.0, run=100.0, activation_checkpointing="none"),
        made(BIG, peak=30.0, run=130.0, activation_checkpointing="full"),
        made(BIG, peak=60.0, run=110.0, activation_checkpointing="selective"),
    )
    assert facts["memory.without_checkpointing_fit_ratio"].value == pytest.approx(0.8)
    assert facts["checkpointing.relative_time"].value == pytest.approx(1.1)
    only = facts_of(cluster(BIG), made(BIG, peak=30.0, activation_checkpointing="full"))
    assert only["checkpointing.relative_time"].value is None


def test_offload_is_compared_in_time_with_the_best_that_needs_none() -> None:
    facts = facts_of(
        cluster(BIG),
        made(BIG, peak=80.0, run=100.0, sharding="parameters"),
        made(BIG, peak=40.0, run=60.0, sharding="gradients", optimizer_offload="cpu"),
        made(BIG, peak=30.0, run=90.0, sharding="parameters", optimizer_offload="cpu"),
    )
    assert facts["offload.feasible"].value is True
    assert facts["offload.relative_time"].value == pytest.approx(0.6)
    without = facts_of(cluster(BIG), made(BIG, peak=80.0, run=100.0, sharding="parameters"))
    assert without["offload.feasible"].value is False
    assert without["offload.relative_time"].value is None
