import pytest

from stratadvisor.probe.merge import merge_profiles
from stratadvisor.probe.spread import MOST_NAMED, spread_verdicts
from stratadvisor.schema.base import Reading, measured, reported, unknown
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile


def node(
    name: str, speed: float | Reading, device: str = "A100", kind: str = "cuda", variation: float | None = None
) -> NodeProfile:
    reading = speed if isinstance(speed, Reading) else measured(speed)
    gpu = DeviceProfile.model_validate(
        {"index": 0, "kind": kind, "name": device, "matmul_flops_per_second": {"bf16": reading}}
    )
    varies = unknown("not measured") if variation is None else measured(variation)
    return NodeProfile(hostname=name, devices=(gpu,), speed_variation=varies)


def test_a_slow_node_is_named_with_its_share_of_the_median() -> None:
    (verdict,) = spread_verdicts([node("a", 100e12), node("b", 98e12), node("c", 50e12, variation=0.02)])
    assert (verdict.subject, verdict.level) == ("c", "problem")
    # the median of 50, 98 and 100 is 98
    assert f"{50 / 98:.0%}" in verdict.message
    assert "varies by 2%" in verdict.message
    assert "power limits" in verdict.advice


@pytest.mark.parametrize(("share", "level"), [(0.9, None), (0.8, "warning"), (0.5, "problem")])
def test_levels(share: float, level: str | None) -> None:
    found = spread_verdicts([node("a", 1e12), node("b", 1e12), node("c", share * 1e12)])
    assert [v.level for v in found] == ([level] if level else [])


def test_other_devices_and_unmeasured_ones_are_no_equals() -> None:
    nodes = [node("a", 100e12), node("b", 20e12, "V100"), node("c", unknown("not tried")), node("d", reported(1e12))]
    assert spread_verdicts(nodes) == ()


def test_an_unsteady_node_is_not_simply_called_slow() -> None:
    (verdict,) = spread_verdicts([node("a", 1e12), node("b", 1e12), node("c", 0.7e12, variation=0.4)])
    assert "unsteady" in verdict.advice


def test_a_slow_processor_gets_a_processors_advice() -> None:
    (verdict,) = spread_verdicts([node(n, s, "EPYC", "cpu") for n, s in (("a", 1e12), ("b", 0.5e12))])
    assert verdict.subject == "b"
    assert "quota" in verdict.advice


def test_of_many_slow_nodes_the_slowest_are_named() -> None:
    slow = [node(f"s{i:03}", (0.3 + i / 1000) * 1e12) for i in range(MOST_NAMED + 5)]
    found = spread_verdicts([*(node(f"f{i}", 1e12) for i in range(100)), *slow])
    assert [v.subject for v in found[:-1]] == [f"s{i:03}" for i in range(MOST_NAMED)]
    assert found[-1].message.startswith("5 more nodes")


def test_merging_profiles_says_it() -> None:
    profiles = [ClusterProfile(nodes=(node(name, speed),)) for name, speed in (("a", 1e12), ("b", 1e12), ("c", 0.4e12))]
    assert [v.subject for v in merge_profiles(profiles).verdicts] == ["c"]
