"""Rates of devices and of single products, from round figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from time_cases import CPU, gpu

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.rates import (
    ASSUMED_CPU_FLOPS,
    ASSUMED_CPU_MEMORY_BANDWIDTH,
    ASSUMED_GPU_FLOPS,
    ASSUMED_GPU_MEMORY_BANDWIDTH,
    Rates,
    compute_format,
    device_rates,
    product_seconds,
)

A100 = gpu("A100-80GB")
# 312e12: the speed at which half the depth is HALF_DEPTH; memory so fast that it never counts
RATES = Rates(
    peak_flops_per_second=fitted.HALF_DEPTH_FLOPS,
    efficiency=0.5,
    memory_bytes_per_second=1e18,
    launch_seconds=0.0,
    element_bytes=2,
    cpu=False,
)
WIDE = 2**20


def speed(rates: Rates, rows: float, out_width: float, in_width: float) -> float:
    return 2.0 * rows * out_width * in_width / product_seconds(rates, rows, out_width, in_width)


def test_depth_and_outputs_fill_the_units() -> None:
    most = fitted.HALF_DEPTH_FLOPS * 0.5
    assert speed(RATES, WIDE, WIDE, WIDE) == pytest.approx(most, rel=2e-4)
    depth = 640 / (640 + fitted.HALF_DEPTH)
    assert speed(RATES, WIDE, WIDE, 640) == pytest.approx(most * depth, rel=1e-6)
    # units four times as fast lose more on the same depth, half as much of it with exponent 1/2
    fast = replace(RATES, peak_flops_per_second=4 * fitted.HALF_DEPTH_FLOPS)
    depth = 640 / (640 + fitted.HALF_DEPTH * 4**fitted.HALF_DEPTH_EXPONENT)
    assert speed(fast, WIDE, WIDE, 640) == pytest.approx(4 * most * depth, rel=1e-6)
    outputs = 128 * 256 / (128 * 256 + fitted.HALF_OUTPUTS)
    depth = WIDE / (WIDE + fitted.HALF_DEPTH)
    assert speed(RATES, 128, 256, WIDE) == pytest.approx(most * outputs * depth, rel=1e-6)


@pytest.mark.parametrize(("out_width", "in_width", "aligned"), [(640, 640, True), (641, 640, False), (640, 641, False)])
def test_widths_that_are_no_multiple_of_a_cache_line_are_slow(out_width: int, in_width: int, aligned: bool) -> None:
    share = in_width / (in_width + fitted.HALF_DEPTH) * WIDE * out_width / (WIDE * out_width + fitted.HALF_OUTPUTS)
    share *= 1.0 if aligned else fitted.MISALIGNED_SHARE
    assert speed(RATES, WIDE, out_width, in_width) == pytest.approx(fitted.HALF_DEPTH_FLOPS * 0.5 * share)
    # rows are tokens: their number does not matter
    assert speed(RATES, WIDE + 1, 640, 640) == pytest.approx(speed(RATES, WIDE, 640, 640), rel=1e-5)


def test_a_thin_product_waits_for_memory() -> None:
    slow = replace(RATES, memory_bytes_per_second=1e12)
    moved = 2 * (8 * 4096 + 8 * 8192 + 4096 * 8192)  # output, input, weights, in 16 bit
    assert product_seconds(slow, 8, 4096, 8192) == pytest.approx(moved / 1e12)
    assert product_seconds(replace(slow, element_bytes=4), 8, 4096, 8192) == pytest.approx(2 * moved / 1e12)
    assert product_seconds(RATES, 0, 4096, 4096) == 0


def test_a_processors_products_follow_their_edge() -> None:
    table = ((math.log(64), 1e10), (math.log(512), 1e11))
    host = replace(RATES, cpu=True, by_edge=table, memory_bytes_per_second=1e18)
    share = fitted.CPU_SUSTAINED_SHARE
    assert speed(host, 512, 512, 512) == pytest.approx(1e11 * share)
    assert speed(host, 4096, 4096, 4096) == pytest.approx(1e11 * share)  # no faster than the best measured
    assert speed(host, 32, 32, 32) == pytest.approx(0.5e10 * share)  # half the smallest edge: half its rate
    between = 64 * 8**0.5  # halfway on the logarithmic axis
    assert speed(host, between, between, between) == pytest.approx((1e10 + 1e11) / 2 * share)
    # edges of unequal products: the cube root of the volume, but four times the smallest at most
    assert speed(host, 64, 512, 512 * 8) == pytest.approx(speed(host, 256, 256, 256))
    assert speed(host, 128, 256, 1024) == pytest.approx(speed(host, 322.54, 322.54, 322.54), rel=1e-3)


def test_a_gpu_reaches_a_share_of_its_peak_by_architecture() -> None:
    found = device_rates(A100, "bf16")
    assert found.peak_flops_per_second == 312e12
    assert found.efficiency == fitted.MATMUL_EFFICIENCY["ampere"]["half"]
    assert found.memory_bytes_per_second == pytest.approx(
        fitted.MEMORY_BANDWIDTH_SHARE * A100.memory_bandwidth_bytes_per_second  # type: ignore[operator]
    )
    assert (found.basis, found.element_bytes, found.cpu, found.by_edge) == ("catalog", 2, False, ())
    assert found.launch_seconds == fitted.KERNEL_LAUNCH_SECONDS
    single = device_rates(A100, "fp32")
    assert (single.element_bytes, single.efficiency) == (4, fitted.MATMUL_EFFICIENCY["ampere"]["fp32"])
    stranger = replace(A100, architecture="nobody's")
    assert device_rates(stranger, "bf16").efficiency == fitted.MATMUL_EFFICIENCY["unknown"]["half"]


def test_tf32_on_hopper_is_slow_where_operands_do_not_lie_along_rows() -> None:
    hopper, ampere = gpu("H100-80GB"), A100
    for device in (hopper, ampere):
        plain = device_rates(device, "fp32")
        assert (plain.turned_share, plain.efficiency) == (1.0, fitted.MATMUL_EFFICIENCY[device.architecture]["fp32"])
        peaks = dict(device.peak_flops_per_second)
        given = replace(device, peak_flops_per_second=peaks | {"fp32": peaks["tf32"]})
        found = device_rates(given, "fp32")
        assert found.efficiency == fitted.MATMUL_EFFICIENCY[device.architecture]["tf32"]
        forward, backward = (product_seconds(found, 8192, 8192, 8192, turned=turned) for turned in (False, True))
        share = fitted.ROW_MAJOR_SHARE if device is hopper else 1.0
        assert forward / backward == pytest.approx(share)
    assert device_rates(hopper, "bf16").turned_share == 1.0


def test_grace_launches_more_slowly() -> None:
    found = device_rates(gpu("GH200-96GB"), "bf16")
    assert found.launch_seconds == fitted.KERNEL_LAUNCH_SECONDS * fitted.GRACE_SLOWNESS
    assert found.host_slowness == fitted.GRACE_SLOWNESS
    assert device_rates(gpu("H100-80GB"), "bf16").host_slowness == 1.0


def test_a_power_limit_slows_by_its_exponent() -> None:
    limited = replace(A100, power_watts=200.0)  # of 400
    share = device_rates(limited, "bf16").efficiency / device_rates(A100, "bf16").efficiency
    assert share == pytest.approx(0.5**fitted.POWER_EXPONENT)
    for watts in (None, 400.0, 500.0):
        assert (
            device_rates(replace(A100, power_watts=watts), "bf16").efficiency == device_rates(A100, "bf16").efficiency
        )


def test_what_was_measured_is_what_is_sustained() -> None:
    found = device_rates(replace(A100, measured_flops_per_second={"bf16": 250e12}), "bf16")
    assert found.sustained_flops_per_second == pytest.approx(250e12 * fitted.SUSTAINED_SHARE)
    assert found.peak_flops_per_second == 312e12
    beyond = device_rates(replace(A100, measured_flops_per_second={"bf16": 400e12}), "bf16")
    assert beyond.peak_flops_per_second == 400e12
    assert beyond.efficiency == pytest.approx(fitted.SUSTAINED_SHARE)
    swept = replace(
        A100, origins={"memory_bandwidth_bytes_per_second": "measured"}, memory_bandwidth_bytes_per_second=1e12
    )
    assert device_rates(swept, "bf16").memory_bytes_per_second == 1e12


def test_a_guess_is_the_nearest_that_is_known() -> None:
    blank = replace(A100, name="X", catalog_key=None, peak_flops_per_second={}, memory_bandwidth_bytes_per_second=None)
    found = device_rates(blank, "bf16")
    assert (found.peak_flops_per_second, found.basis) == (ASSUMED_GPU_FLOPS, "assumed")
    assert found.memory_bytes_per_second == ASSUMED_GPU_MEMORY_BANDWIDTH * fitted.MEMORY_BANDWIDTH_SHARE
    assert any("20 TFLOP/s" in note for note in found.assumptions)
    assert any("300 GB/s" in note for note in found.assumptions)
    listed = replace(blank, peak_flops_per_second={"fp32": 19.5e12})
    assert device_rates(listed, "bf16").peak_flops_per_second == 19.5e12
    timed = replace(listed, measured_flops_per_second={"fp16": 100e12})
    assert device_rates(timed, "bf16").peak_flops_per_second == 100e12


def test_a_processor_is_what_was_measured_of_it() -> None:
    found = device_rates(CPU, "bf16")  # 16 bit was not: its products run as in fp32
    assert (found.peak_flops_per_second, found.efficiency, found.basis) == (
        1e11,
        fitted.CPU_SUSTAINED_SHARE,
        "measured",
    )
    assert (found.launch_seconds, found.core_flops_per_second) == (fitted.CPU_OPERATION_SECONDS, 1e11)
    blank = replace(CPU, measured_flops_per_second={}, peak_flops_per_second={}, memory_bandwidth_bytes_per_second=None)
    guess = device_rates(blank, "fp32")
    assert (guess.peak_flops_per_second, guess.efficiency, guess.basis) == (ASSUMED_CPU_FLOPS, 1.0, "assumed")
    assert guess.memory_bytes_per_second == ASSUMED_CPU_MEMORY_BANDWIDTH
    sized = replace(CPU, matmul_by_size={"fp32": {64: 2e10, 256: 1.5e11, 1024: 1.2e11}})
    found = device_rates(sized, "fp32")
    assert found.core_flops_per_second == 1.5e11
    assert found.by_edge == ((math.log(64), 2e10), (math.log(256), 1.5e11), (math.log(1024), 1.5e11))
    assert device_rates(sized, "bf16").by_edge == found.by_edge


def test_formats_that_a_device_knows() -> None:
    assert compute_format("bf16_pure", A100) == "bf16"
    assert compute_format("fp32", A100) == "fp32"
    assert compute_format("bf16", CPU) == "bf16"  # emulated, at whatever rate
    timed = replace(gpu("T4"), measured_flops_per_second={"bf16": 1e12})
    assert compute_format("bf16", timed) == "bf16"


def test_a_size_of_nothing_is_no_point_of_the_curve() -> None:
    sized = replace(CPU, matmul_by_size={"fp32": {0: 5e10, 64: 1e11}})
    assert device_rates(sized, "fp32").by_edge == ((math.log(64), 1e11),)
