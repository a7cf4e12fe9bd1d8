from typing import Any

import pytest

from stratadvisor.probe import assemble
from stratadvisor.probe.found import Levels, MatmulRates, MemoryRate, PairRate, Steadiness, SweepTimes
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.profile import DeviceLink, DeviceProfile, NicProfile


def nic(name: str, kind: str, rate: float | None, up: bool | None = True) -> NicProfile:
    reading = unknown("the driver states no speed") if rate is None else reported(rate)
    return NicProfile.model_validate({"name": name, "kind": kind, "rate_bytes_per_second": reading, "up": up})


def test_the_rate_is_that_of_a_large_product_not_of_one_in_the_cache() -> None:
    rates = {
        "fp16": MatmulRates(by_edge={128: 9e9, 512: 4e9, 1024: 3e9}),
        "fp8": MatmulRates(reason="no units"),
    }
    device = assemble.with_compute(DeviceProfile(index=0, kind="cpu", name="c"), rates, "1 thread", "")
    assert device.matmul_flops_per_second["fp16"].value == 4e9
    assert "512x512" in device.matmul_flops_per_second["fp16"].detail
    assert device.matmul_flops_per_second["fp8"].value is None
    assert device.matmul_flops_per_second["fp8"].detail == "no units"
    assert device.matmul_by_size == {"fp16": {128: 9e9, 512: 4e9, 1024: 3e9}}


def test_without_measurement_the_reason_stands_where_the_value_would() -> None:
    device = assemble.with_compute(DeviceProfile(index=0, kind="cpu", name="c"), None, "", "no answer within 2 s")
    assert device.matmul_flops_per_second["fp32"].detail == "no answer within 2 s"
    assert assemble.memory_reading(None, "", "why").detail == "why"
    assert assemble.data_feed_profile(None, "why").item_seconds.detail == "why"
    assert assemble.variation_reading({}, "why").detail == "why"


def test_a_sweep_carries_bus_bandwidth_and_fit() -> None:
    alpha, bandwidth, ranks = 1e-4, 8e9, 4
    factor = 1.5  # 2(n-1)/n for 4 ranks
    sizes = [4**k * 1024 for k in range(8)]
    times = SweepTimes(
        backend="nccl",
        world_size=ranks,
        points=tuple((s, alpha + s / bandwidth) for s in sizes),
        repetitions=(5,) * 8,
    )
    sweep = assemble.sweep_profile(times, "4 ranks")
    assert sweep.backend == "nccl"
    assert sweep.latency_seconds.value == pytest.approx(alpha, rel=1e-4)
    assert sweep.bus_bandwidth_bytes_per_second.value == pytest.approx(bandwidth * factor, rel=1e-4)
    point = sweep.points[3]
    assert point.algorithm_bandwidth_bytes_per_second == pytest.approx(point.message_bytes / point.seconds)
    assert point.bus_bandwidth_bytes_per_second == pytest.approx(factor * point.algorithm_bandwidth_bytes_per_second)


def test_latency_is_never_a_silent_zero() -> None:
    bent = SweepTimes(backend="gloo", world_size=2, points=((1, 1.0), (2, 2.5), (3, 4.5)), repetitions=(3, 3, 3))
    assert assemble.sweep_profile(bent, "").latency_seconds.value == 1.0


def test_a_sweep_of_one_size_has_no_fit_but_says_so() -> None:
    sweep = assemble.sweep_profile(
        SweepTimes(backend="gloo", world_size=2, points=((1024, 1e-3),), repetitions=(3,)), ""
    )
    assert sweep.latency_seconds.value is None
    assert "fewer than two" in sweep.bus_bandwidth_bytes_per_second.detail


def test_time_that_does_not_grow_gives_no_bandwidth() -> None:
    flat = SweepTimes(backend="gloo", world_size=2, points=((1024, 2e-3), (65536, 1e-3)), repetitions=(3, 3))
    assert assemble.sweep_profile(flat, "").bus_bandwidth_bytes_per_second.value is None


def test_pair_rates_join_the_links_the_driver_listed() -> None:
    links = (DeviceLink(device_a=1, device_b=0, kind="nvlink", num_links=4),)
    rates = [
        PairRate(device_a=0, device_b=1, peer_access=True, bytes_per_second=9e10, intact=True),
        PairRate(device_a=0, device_b=2, peer_access=False, bytes_per_second=1e10, intact=False),
    ]
    joined = assemble.with_pairs(links, rates, {0: 0, 1: 1, 2: 5})
    assert [(x.device_a, x.device_b, x.kind, x.num_links, x.bandwidth_bytes_per_second.value) for x in joined] == [
        (1, 0, "nvlink", 4, 9e10),
        (0, 5, "unknown", None, 1e10),
    ]
    (verdict,) = assemble.pair_verdicts(rates, {0: 0, 1: 1, 2: 5}, "n1")
    assert verdict.level == "problem"
    assert verdict.subject == "n1 GPU 0 to GPU 5"


def watched(**more: Any) -> Steadiness:
    given: dict[str, Any] = {"variation": 0.1, "num_pieces": 30, "piece_seconds": 0.2, "flops_per_second": 5e10}
    return Steadiness(**(given | {"edge": 384} | more))


HALF = Levels(speeds=((0.5, 0.5), (0.5, 1.5)), phase_seconds=1.0)


def test_a_share_of_the_processor_seen_for_seconds_goes_before_one_seen_for_half_a_second() -> None:
    cpu = DeviceProfile(index=0, kind="cpu", name="a processor")
    rates = {"fp32": MatmulRates(by_edge={256: 4e10, 512: 5e10}, processor_share=0.5, operation_seconds=2e-5)}
    # 0.3 of a processor over time, for which brief timings took 0.5
    found = assemble.with_compute(cpu, rates, "alone", "", watched(processor_share=0.3))
    assert found.matmul_by_size == {"fp32": {256: pytest.approx(2.4e10), 512: pytest.approx(3e10)}}
    assert found.matmul_flops_per_second["fp32"].value == pytest.approx(3e10)
    assert "the processor is had for 30% of 6.0 s" in found.matmul_flops_per_second["fp32"].detail
    assert found.speed_over_time is None
    assert found.operation_seconds.value == pytest.approx(2e-5 * 0.5 / 0.3)
    triad = MemoryRate(bytes_per_second=8e9, array_bytes=2**26, num_samples=5, processor_share=0.5)
    assert assemble.memory_reading(triad, "", "", watched(processor_share=0.3)).value == pytest.approx(4.8e9)
    # nothing takes the processor away, as far as either saw; or nobody watched
    whole = {"fp32": MatmulRates(by_edge={512: 5e10})}
    for steady in (watched(processor_share=0.95), None):
        assert assemble.with_compute(cpu, whole, "", "", steady).matmul_flops_per_second["fp32"].value == 5e10


def test_a_device_that_is_fast_half_of_the_time_is_planned_with_its_mean() -> None:
    card = DeviceProfile(index=0, kind="cuda", name="a card")
    rates = {"fp32": MatmulRates(by_edge={2048: 3e13, 4096: 4e13}), "bf16": MatmulRates(by_edge={4096: 2e14})}
    steady = watched(levels=HALF, edge=4096, flops_per_second=2.6e13)
    found = assemble.with_compute(card, rates, "", "", steady)
    assert found.matmul_flops_per_second["bf16"].value == pytest.approx(2e14 * 2.6 / 4)
    assert found.speed_over_time is not None
    assert found.speed_over_time.shares == ((0.5, 0.5), (0.5, 1.5))
    assert found.speed_over_time.phase_seconds == 1.0
    # no product of a like size was timed: nothing says in which phase the others were
    small = {"bf16": MatmulRates(by_edge={4096: 2e14}), "fp32": MatmulRates(by_edge={512: 1e13})}
    assert assemble.with_compute(card, small, "", "", steady).matmul_flops_per_second["bf16"].value == 2e14
    # what was watched is told of a device without products as well
    assert assemble.with_compute(card, None, "", "it hung", steady).speed_over_time is not None


def test_the_least_steady_device_counts() -> None:
    found = {
        0: watched(variation=0.02),
        1: watched(variation=0.2),
    }
    assert assemble.variation_reading(found, "").value == 0.2


def test_all_fabric_ports_carry_traffic_but_only_the_best_ethernet() -> None:
    ethernet = (nic("eth0", "ethernet", 1.25e9), nic("eth1", "ethernet", 12.5e9), nic("eth2", "ethernet", 5e10, False))
    assert assemble.network_reading(ethernet).value == 12.5e9
    fabric = (nic("ib0", "infiniband", 25e9), nic("ib1", "infiniband", 25e9))
    reading = assemble.network_reading((*ethernet, *fabric))
    assert (reading.value, reading.origin) == (50e9, "reported")


def test_virtual_and_silent_interfaces_give_no_rate() -> None:
    nics = (nic("veth0", "virtual", 1.25e9), nic("lo", "loopback", None), nic("eth0", "ethernet", None))
    assert assemble.network_reading(nics).value is None
    assert assemble.network_reading(()).detail
