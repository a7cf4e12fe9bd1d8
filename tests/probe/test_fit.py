import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.probe.fit import bus_factor, fit_alpha_beta

SIZES = [1024.0 * 4**k for k in range(9)]


@given(alpha=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e6, 1e12))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_exact_timings_give_back_their_alpha_and_beta(alpha: float, bandwidth: float) -> None:
    fit = fit_alpha_beta([(size, alpha + size / bandwidth) for size in SIZES])
    assert fit.median_relative_error < 1e-6
    for size in SIZES:
        assert fit.seconds(size) == pytest.approx(alpha + size / bandwidth, rel=1e-6)
    # Where both terms are a visible part of some timing, each is found by itself.
    if 1e-3 < alpha * bandwidth / SIZES[4] < 1e3:
        assert fit.latency_seconds == pytest.approx(alpha, rel=1e-4)
        assert fit.bytes_per_second == pytest.approx(bandwidth, rel=1e-4)


@given(victim=st.integers(0, len(SIZES) - 1), factor=st.floats(3, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_one_disturbed_point_hardly_moves_the_line(victim: int, factor: float) -> None:
    alpha, bandwidth = 50e-6, 10e9
    points = [(size, alpha + size / bandwidth) for size in SIZES]
    points[victim] = (points[victim][0], points[victim][1] * factor)
    fit = fit_alpha_beta(points)
    assert fit.latency_seconds == pytest.approx(alpha, rel=0.05)
    assert fit.bytes_per_second == pytest.approx(bandwidth, rel=0.05)


def test_noise_of_five_percent_leaves_both_within_ten() -> None:
    noise = random.Random(7)
    alpha, bandwidth = 20e-6, 200e9
    points = [(size, (alpha + size / bandwidth) * noise.gauss(1, 0.05)) for size in SIZES for _ in range(5)]
    fit = fit_alpha_beta(points)
    assert fit.latency_seconds == pytest.approx(alpha, rel=0.10)
    assert fit.bytes_per_second == pytest.approx(bandwidth, rel=0.10)
    assert 0.01 < fit.median_relative_error < 0.08


def test_alpha_is_never_negative() -> None:
    # A curve through the origin that bends upwards: an unconstrained line would start below zero.
    fit = fit_alpha_beta([(1.0, 1.0), (2.0, 2.5), (3.0, 4.5)])
    assert fit.latency_seconds == 0.0
    assert fit.seconds_per_byte > 0


def test_time_that_does_not_grow_has_no_bandwidth() -> None:
    fit = fit_alpha_beta([(1024.0, 3e-4), (4096.0, 3e-4), (65536.0, 2.9e-4)])
    assert fit.bytes_per_second is None
    assert 2.9e-4 <= fit.latency_seconds <= 3e-4


@pytest.mark.parametrize("points", [[], [(1024.0, 1e-3)], [(1024.0, 1e-3), (1024.0, 2e-3)], [(1.0, 0.0), (2.0, 1.0)]])
def test_points_that_make_no_line_are_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError):
        fit_alpha_beta(points)


def test_bus_factor_is_that_of_nccl_tests() -> None:
    assert bus_factor(2) == 1.0
    assert bus_factor(8) == 1.75
