from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import WORKLOAD, candidate, facts_of
from planning_clusters import GIGABIT, cluster, gpu, nodes

from stratadvisor.derive.synchronization_facts import gradient_bytes
from stratadvisor.schema.layout import Layout

A100, V100 = nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB"))
UNEQUAL = cluster(A100, V100, between=12.5e9)


def test_exposed_share_is_that_of_the_fastest_configuration_with_most_devices() -> None:
    facts = facts_of(
        UNEQUAL,
        candidate("ddp", A100, V100, run=100, exposed=0.4),
        candidate("zero1", A100, V100, run=90, exposed=0.3),
        candidate("zero1", A100, V100, run=10, exposed=0.9, feasible=False),
        candidate("ddp", A100, run=50, exposed=0.01),
        candidate("diloco", A100, V100, run=20, exposed=0.02),
    )
    assert facts["sync.exposed_communication_fraction"].value == pytest.approx(0.3)
    assert facts["sync.best_exposed_communication_fraction"].value == pytest.approx(0.01)
    assert "16 devices" in facts["sync.exposed_communication_fraction"].because


def test_unequal_shares_count_too_and_their_gain_is_measured_against_equal_ones() -> None:
    facts = facts_of(
        UNEQUAL,
        candidate("ddp", A100, V100, run=100, exposed=0.4),
        candidate("uneven_ddp", A100, V100, run=80, batch=(12, 4), exposed=0.2),
    )
    assert facts["sync.exposed_communication_fraction"].value == pytest.approx(0.2)
    assert facts["sync.uneven_gain"].value == pytest.approx(100 / 80 - 1)


def test_a_sharded_engine_with_unequal_shares_belongs_to_the_uneven_family() -> None:
    facts = facts_of(UNEQUAL, candidate("fsdp2", A100, V100, batch=(12, 4)))
    assert facts["family.uneven_synchronous.feasible"].value is True
    assert facts["family.synchronous.feasible"].value is False


def test_without_a_synchronous_configuration_nothing_is_exposed_and_the_reason_is_said() -> None:
    facts = facts_of(UNEQUAL, candidate("diloco", A100, V100))
    for name in ("exposed_communication_fraction", "uneven_gain", "hiding_tokens", "tokens_per_exchange_ratio"):
        assert facts[f"sync.{name}"].value is None
        assert "fits" in facts[f"sync.{name}"].because


def test_hiding_tokens_follow_from_rates_alone() -> None:
    # 16 devices, 2e16 FLOPs a step in 5 s of compute each: F = 2e16 / 16 / 5 = 2.5e14
    # D* = (15/16) * 4 bytes * 2.5e14 / (2 * 12.5e9); DDP reduces fp32 gradients
    made = candidate("ddp", A100, V100, micro=2, flops=2e16, compute=5.0)
    facts = facts_of(UNEQUAL, made)
    expected = 15 / 16 * 4 * 2.5e14 / (2 * 12.5e9)
    assert facts["sync.hiding_tokens"].value == pytest.approx(expected)
    assert facts["sync.tokens_per_exchange"].value == 2 * 2048
    assert facts["sync.tokens_per_exchange_ratio"].value == pytest.approx(2 * 2048 / expected)


def test_a_faster_network_needs_proportionally_fewer_hiding_tokens() -> None:
    made = candidate("ddp", A100, V100)
    slow, fast = (
        facts_of(replace(UNEQUAL, inter_node_bytes_per_second=rate), made)["sync.hiding_tokens"].value
        for rate in (GIGABIT, 100 * GIGABIT)
    )
    assert slow == pytest.approx(100 * float(fast))  # type: ignore[arg-type]


def test_inside_one_node_the_inner_links_count() -> None:
    facts = facts_of(cluster(A100), candidate("ddp", A100, flops=8e15, compute=1.0))
    # F = 8e15 / 8 / 1 = 1e15; bus bandwidth 3e11
    assert facts["sync.hiding_tokens"].value == pytest.approx(7 / 8 * 4 * 1e15 / (2 * 3e11))


def test_adapters_and_unknown_rates_leave_the_rule_undecided() -> None:
    made = candidate("ddp", A100, V100)
    adapters = facts_of(UNEQUAL, made, workload=WORKLOAD.model_copy(update={"method": "lora"}))
    assert "adapters" in adapters["sync.tokens_per_exchange_ratio"].because
    silent = facts_of(replace(UNEQUAL, inter_node_bytes_per_second=None), made)
    assert silent["sync.tokens_per_exchange"].value == 2048
    assert silent["sync.hiding_tokens"].value is None


def test_gradients_travel_in_fp32_under_ddp_and_in_the_compute_precision_when_sharded() -> None:
    assert gradient_bytes(Layout(engine="ddp", precision="bf16")) == 4
    assert gradient_bytes(Layout(engine="fsdp2", precision="bf16")) == 2
    assert gradient_bytes(Layout(engine="deepspeed", precision="fp16")) == 2
    assert gradient_bytes(Layout(engine="fsdp2", precision="fp32")) == 4


def test_stragglers_follow_the_extreme_value_of_normal_noise() -> None:
    noisy = cluster(replace(A100, speed_variation=0.1), replace(V100, speed_variation=0.05), between=GIGABIT)
    fact = facts_of(noisy)["sync.straggler_slowdown"]
    assert fact.value == pytest.approx(1 + 0.1 * 1.766, rel=0.01)  # the expected largest of 16, tabulated
    assert facts_of(UNEQUAL)["sync.straggler_slowdown"].value is None
    alone = cluster(replace(nodes(gpu("A100-80GB"), per_node=1), speed_variation=0.5))
    assert facts_of(alone)["sync.straggler_slowdown"].value is None


def test_mean_staleness_is_the_number_of_other_workers() -> None:
    assert facts_of(UNEQUAL)["async.expected_staleness_steps"].value == 15
    assert facts_of(cluster(nodes(gpu("A100-80GB"), per_node=1)))["async.expected_staleness_steps"].value is None


def test_relative_times_are_measured_against_the_best_exact_method() -> None:
    facts = facts_of(
        UNEQUAL,
        candidate("single", A100, run=400),
        candidate("ddp", A100, V100, run=100),
        candidate("uneven_ddp", A100, V100, run=80, batch=(12, 4)),
        candidate("diloco", A100, V100, run=60),
        candidate("diloco", A100, V100, run=50),
        candidate("async_sgd", A100, V100, feasible=False, reason="needs 99 GiB"),
    )
    expected = {"single": 5.0, "synchronous": 1.25, "uneven_synchronous": 1.0, "local_sgd": 0.625}
    for family, ratio in expected.items():
        assert facts[f"family.{family}.relative_time"].value == pytest.approx(ratio)
        assert facts[f"family.{family}.feasible"].value is True
    assert facts["family.asynchronous.feasible"].value is False
    assert facts["family.asynchronous.relative_time"].value is None
    assert "needs 99 GiB" in facts["family.asynchronous.relative_time"].because
    assert "does not fit" not in facts["family.hierarchical.feasible"].because
    assert facts["family.exact.feasible"].value is True


def test_without_an_exact_method_there_is_no_scale() -> None:
    facts = facts_of(UNEQUAL, candidate("diloco", A100, V100))
    assert facts["family.exact.feasible"].value is False
    assert facts["family.local_sgd.feasible"].value is True
    assert facts["family.local_sgd.relative_time"].value is None
