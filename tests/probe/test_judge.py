import pytest

from stratadvisor.catalog import devices as catalog
from stratadvisor.probe.judge import HOST_LINK, MATMUL, SIBLING_SHARE, expected_host_link, judge
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    DeviceLink,
    DeviceProfile,
    NodeProfile,
    StorageProfile,
    Verdict,
)

A100 = "NVIDIA A100-SXM4-80GB"
SPEC = catalog.lookup(A100)
assert SPEC is not None
BF16 = SPEC.peak_flops_per_second["bf16"]


def gpu(index: int = 0, share: float | None = 0.8, name: str = A100, **more: object) -> DeviceProfile:
    rates = {} if share is None else {"bf16": measured(share * BF16)}
    return DeviceProfile.model_validate(
        {"index": index, "kind": "cuda", "name": name, "matmul_flops_per_second": rates, **more}
    )


def verdicts(*devices: DeviceProfile, sweeps: tuple[CollectiveSweep, ...] = (), **more: object) -> list[Verdict]:
    node = NodeProfile.model_validate({"hostname": "n1", "devices": devices, **more})
    return list(judge(ClusterProfile(nodes=(node,), collectives=sweeps)))


def levels(found: list[Verdict]) -> list[str]:
    return [verdict.level for verdict in found]


def sweep(bandwidth: float, ranks: int, backend: str = "nccl", latency: float = 2e-5) -> CollectiveSweep:
    return CollectiveSweep.model_validate(
        {
            "operation": "all_reduce",
            "scope": "intra_node",
            "backend": backend,
            "world_size": ranks,
            "latency_seconds": measured(latency),
            "bus_bandwidth_bytes_per_second": measured(bandwidth),
        }
    )


@pytest.mark.parametrize(
    ("share", "level"),
    [(0.8, "info"), (MATMUL.warn - 0.01, "warning"), (MATMUL.problem - 0.01, "problem"), (1.5, "warning")],
)
def test_products_are_held_against_the_published_peak(share: float, level: str) -> None:
    (verdict,) = verdicts(gpu(share=share))
    assert verdict.level == level
    assert f"{share:.0%}" in verdict.message
    assert verdict.subject == "n1 GPU 0"
    assert bool(verdict.advice) == (level != "info")


def test_a_device_without_catalog_entry_or_measurement_gets_no_verdict() -> None:
    assert verdicts(gpu(name="Unheard-of Accelerator 9000")) == []
    assert verdicts(gpu(share=None)) == []


def test_a_declared_rate_is_not_judged_as_if_it_were_measured() -> None:
    device = gpu().model_copy(update={"matmul_flops_per_second": {"bf16": reported(0.01 * BF16)}})
    assert verdicts(device) == []


def test_the_advice_names_the_lowered_power_limit() -> None:
    device = gpu(share=0.4, power_limit_watts=measured(200.0), power_default_watts=measured(400.0))
    (verdict,) = verdicts(device)
    assert "200 W of 400 W" in verdict.advice


def test_slow_memory_is_told() -> None:
    rate = SPEC.memory_bandwidth_bytes_per_second if SPEC else 0.0
    good = gpu(memory_bandwidth_bytes_per_second=measured(0.85 * rate))
    bad = gpu(memory_bandwidth_bytes_per_second=measured(0.4 * rate))
    assert levels(verdicts(good)) == ["info"]
    assert levels(verdicts(bad)) == ["info", "problem"]


def test_an_idle_link_at_generation_one_is_not_what_copies_are_held_against() -> None:
    idle = gpu(
        pcie_generation_max=4,
        pcie_generation_current=1,
        pcie_width_max=16,
        pcie_width_current=16,
        host_to_device_bytes_per_second=measured(24e9),
        device_to_host_bytes_per_second=measured(24e9),
    )
    expected = expected_host_link(idle)
    assert expected is not None
    assert expected[0] == catalog.PCIE_X16_BYTES_PER_SECOND[4]
    assert levels(verdicts(idle)) == ["info"]


def test_copies_far_below_the_slot_are_told_by_direction() -> None:
    slow = gpu(
        pcie_generation_max=4,
        pcie_width_current=16,
        host_to_device_bytes_per_second=measured(catalog.PCIE_X16_BYTES_PER_SECOND[4] * (HOST_LINK.problem - 0.01)),
        device_to_host_bytes_per_second=measured(catalog.PCIE_X16_BYTES_PER_SECOND[4]),
    )
    found = [v for v in verdicts(slow) if v.level != "info"]
    assert levels(found) == ["problem"]
    assert "from host to device" in found[0].message


def test_a_narrow_slot_is_expected_to_give_its_own_share() -> None:
    narrow = gpu(pcie_generation_max=4, pcie_width_max=16, pcie_width_current=4)
    expected = expected_host_link(narrow)
    assert expected is not None
    assert expected[0] == catalog.PCIE_X16_BYTES_PER_SECOND[4] / 4


def test_the_slow_card_among_equals_is_named() -> None:
    slow = 0.8 * (SIBLING_SHARE - 0.05)
    found = verdicts(gpu(0), gpu(1), gpu(2, share=slow), gpu(3))
    warnings = [v for v in found if v.level == "warning"]
    assert [v.subject for v in warnings] == ["n1 GPU 2"]
    assert not [v for v in verdicts(gpu(0), gpu(1), gpu(2), gpu(3)) if v.level != "info"]


def test_a_ring_is_held_against_nvlink_where_all_pairs_have_it_else_against_pcie() -> None:
    devices = tuple(gpu(i, pcie_generation_max=4, pcie_width_max=16) for i in range(4))
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    all_nvlink = tuple(DeviceLink(device_a=a, device_b=b, kind="nvswitch") for a, b in pairs)
    one_pair = tuple(
        DeviceLink(device_a=a, device_b=b, kind="nvlink" if (a, b) == (2, 3) else "host_bridge") for a, b in pairs
    )
    rate = 20e9  # fine for a PCIe 4 ring, far too little for NVLink's 300 GB/s
    over_nvlink = [v for v in verdicts(*devices, sweeps=(sweep(rate, 4),), links=all_nvlink) if v.level != "info"]
    over_pcie = [v for v in verdicts(*devices, sweeps=(sweep(rate, 4),), links=one_pair) if v.level != "info"]
    assert levels(over_nvlink) == ["problem"]
    assert "NVLink" in over_nvlink[0].message
    assert over_pcie == []


def test_a_network_ring_is_held_against_the_slowest_line_rate() -> None:
    nodes = tuple(
        NodeProfile(hostname=f"n{i}", network_bytes_per_second=reported(rate)) for i, rate in enumerate((25e9, 12.5e9))
    )
    slow = sweep(2e9, 16).model_copy(update={"scope": "inter_node", "num_nodes": 2})
    (verdict,) = judge(ClusterProfile(nodes=nodes, collectives=(slow,)))
    assert verdict.level == "problem"
    assert "16% of" in verdict.message  # 2 of 12.5


@pytest.mark.parametrize(("variation", "expected"), [(0.03, []), (0.15, ["warning"]), (0.4, ["problem"])])
def test_unsteady_machines_are_told(variation: float, expected: list[str]) -> None:
    assert levels(verdicts(speed_variation=measured(variation))) == expected


def test_a_speed_that_comes_and_goes_is_told_in_words() -> None:
    def told(phase: float) -> Verdict:
        over = {
            "levels": [{"time_share": 0.5, "relative_speed": 0.5}, {"time_share": 0.5, "relative_speed": 1.5}],
            "phase_seconds": phase,
            "watched_seconds": 6.0,
        }
        (verdict,) = verdicts(gpu(share=None, speed_over_time=over), speed_variation=measured(0.5))
        return verdict

    # 0.5 of 1.5; six phases come and go, two may have been one event
    assert told(1.0).message == "runs at 33% of its speed for 50% of the time (in phases of 1.0 s)"
    assert told(3.0).message == "ran at 33% of its speed for 50% of the time (watched for 6.0 s)"
    assert (told(1.0).level, told(1.0).subject) == ("problem", "n1")
    three = {
        "levels": [{"time_share": 0.25, "relative_speed": speed} for speed in (0.4, 0.8, 0.8, 2.0)],
        "phase_seconds": 0.4,
        "watched_seconds": 6.0,
    }
    (varied,) = verdicts(gpu(share=None, speed_over_time=three))
    assert varied.message.startswith("varies: it runs at 20% of its speed for 25%, at 40% of its speed for 25%, ")


def test_storage_slower_than_a_disk_and_slow_empty_exchanges_are_told() -> None:
    slow = StorageProfile(path="/data", read_bytes_per_second=measured(20e6))
    found = verdicts(storage=(slow,), sweeps=(sweep(1e9, 2, "gloo", latency=0.02),))
    assert [v.subject for v in found] == ["n1 /data", "all_reduce inside a node"]
    assert "20 ms" in found[1].message
    assert all(v.advice for v in found)
