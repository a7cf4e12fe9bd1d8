from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import facts_of, profile_of
from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.schema.base import measured
from stratadvisor.schema.profile import DeviceProfile, NodeProfile, Verdict

A100, V100 = gpu("A100-80GB"), gpu("V100-32GB")


def test_counts_and_kinds() -> None:
    facts = facts_of(cluster(nodes(A100, count=2), nodes(V100, count=1, per_node=2)))
    assert facts["cluster.num_devices"].value == 2 * 8 + 2
    assert facts["cluster.num_nodes"].value == 3
    assert facts["cluster.num_node_classes"].value == 2
    assert facts["cluster.devices_per_node_equal"].value is False
    assert facts["cluster.mixed_devices"].value is True
    assert facts["cluster.device_kind"].value == "cuda"
    mixed = facts_of(cluster(nodes(A100), nodes(cpu(), per_node=1)))
    assert mixed["cluster.device_kind"].value == "mixed"


def test_alike_nodes_have_no_spread_even_when_no_speed_is_known() -> None:
    unknown = replace(A100, peak_flops_per_second={}, measured_flops_per_second={})
    assert facts_of(cluster(nodes(unknown, count=4)))["cluster.speed_spread"].value == 1.0


def test_catalog_spread_uses_a_precision_that_both_have_on_matrix_units() -> None:
    fact = facts_of(cluster(nodes(A100), nodes(V100)))["cluster.speed_spread"]
    # dense fp16 peaks of the data sheets: A100 312 TFLOP/s, V100 SXM2 125 TFLOP/s; bf16 only on the A100
    assert fact.value == pytest.approx(312 / 125, rel=0.01)
    assert fact.origin == "catalog"
    assert "fp16" in fact.because


def test_measured_spread_wins_and_is_never_mixed_with_catalog_peaks() -> None:
    fast = replace(A100, measured_flops_per_second={"fp16": 250e12})
    slow = replace(V100, measured_flops_per_second={"fp16": 100e12})
    both = facts_of(cluster(nodes(fast), nodes(slow)))["cluster.speed_spread"]
    assert (both.value, both.origin) == (250e12 / 100e12, "measured")
    one = facts_of(cluster(nodes(fast), nodes(V100)))["cluster.speed_spread"]
    assert one.origin == "catalog"
    assert one.value == pytest.approx(312 / 125, rel=0.01)


def test_speeds_in_different_precisions_only_are_unknown() -> None:
    fast = replace(A100, peak_flops_per_second={"bf16": 312e12})
    slow = replace(V100, peak_flops_per_second={"fp16": 125e12})
    fact = facts_of(cluster(nodes(fast), nodes(slow)))["cluster.speed_spread"]
    assert fact.value is None
    assert "no arithmetic rate" in fact.because


def test_speed_variation_is_that_of_the_least_steady_class() -> None:
    classes = [replace(nodes(A100), speed_variation=0.02), replace(nodes(V100), speed_variation=0.3)]
    assert facts_of(cluster(*classes))["cluster.speed_variation"].value == 0.3
    assert facts_of(cluster(nodes(A100)))["cluster.speed_variation"].value is None
    partly = facts_of(cluster(classes[0], nodes(V100)))["cluster.speed_variation"]
    assert partly.value == 0.02
    assert "1 classes not measured" in partly.because


def device(index: int, rate: float, *, name: str = "X", healthy: bool | None = True) -> DeviceProfile:
    return DeviceProfile(
        index=index, kind="cuda", name=name, healthy=healthy, matmul_flops_per_second={"bf16": measured(rate)}
    )


def test_a_lagging_device_is_compared_with_the_median_of_its_own_kind() -> None:
    node = NodeProfile(
        hostname="node0",
        devices=(device(0, 100.0), device(1, 104.0), device(2, 80.0), device(3, 50.0, name="Y")),
    )
    fact = facts_of(cluster(nodes(A100)), profile=profile_of(node))["cluster.slow_device_ratio"]
    assert fact.value == 100.0 / 80.0  # median of 80, 100, 104; the slower kind Y is alone
    assert "node0 device 2" in fact.because


def test_a_dead_device_counts_as_unhealthy_and_not_as_slow() -> None:
    node = NodeProfile(hostname="node0", devices=(device(0, 100.0), device(1, 1.0, healthy=False)))
    facts = facts_of(cluster(nodes(A100)), profile=profile_of(node))
    assert facts["cluster.num_unhealthy_devices"].value == 1
    assert facts["cluster.slow_device_ratio"].value == 1.0


def test_problems_are_counted_and_warnings_are_not() -> None:
    verdicts = tuple(Verdict(level=v, subject="s", message="m") for v in ("problem", "warning", "info"))  # type: ignore[arg-type]
    profile = profile_of().model_copy(update={"verdicts": verdicts})
    assert facts_of(cluster(nodes(A100)), profile=profile)["cluster.num_problems"].value == 1


def test_memory_in_use_is_that_of_the_fullest_gpu_and_no_question_for_a_cpu() -> None:
    total = A100.memory_total_bytes
    assert total is not None
    free = replace(A100, memory_free_bytes=total * 0.75)
    facts = facts_of(cluster(nodes(free), nodes(replace(V100, memory_free_bytes=V100.memory_total_bytes))))
    assert facts["cluster.memory_in_use_fraction"].value == pytest.approx(0.25)
    assert facts_of(cluster(nodes(A100)))["cluster.memory_in_use_fraction"].value is None
    assert facts_of(cluster(nodes(cpu(), per_node=1)))["cluster.memory_in_use_fraction"].value is None


def test_memory_is_known_only_when_every_device_says_it() -> None:
    known, unknown = nodes(A100), nodes(gpu("V100-32GB", memory_known=False))
    assert facts_of(cluster(known))["cluster.device_memory_known"].value is True
    assert facts_of(cluster(known, unknown))["cluster.device_memory_known"].value is False
