from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import CPU, gpu, nodes, work

from stratadvisor.costs.energy import BUSY_SHARE, IDLE_SHARE, busy_fraction, carbon_grams, step_energy_joules
from stratadvisor.schema.layout import Span, TimeEstimate

HALF_BUSY = TimeEstimate(
    terms_seconds={"matmul": 1.0, "exposed_communication": 1.0},
    step_seconds=Span(low=1.0, likely=2.0, high=4.0),
    communication_seconds=1.0,
    exposed_communication_seconds=1.0,
    model_flops_per_step=1.0,
    tokens_per_step=1.0,
)


def test_energy_is_power_times_time_by_how_busy_the_devices_are() -> None:
    made = step_energy_joules(HALF_BUSY, work(nodes(gpu("A100-80GB"), 2, 8)))
    assert made is not None
    assert busy_fraction(HALF_BUSY) == 0.5
    watts = 16 * 400.0
    assert made.likely == pytest.approx(watts * 2.0 * (IDLE_SHARE[1] + BUSY_SHARE[1]) / 2)
    assert made.low == pytest.approx(watts * 1.0 * (IDLE_SHARE[0] + BUSY_SHARE[0]) / 2)
    assert made.high == pytest.approx(watts * 4.0 * (IDLE_SHARE[2] + BUSY_SHARE[2]) / 2)


def test_energy_never_exceeds_the_power_limit() -> None:
    busy = replace(HALF_BUSY, terms_seconds={"matmul": 2.0})
    made = step_energy_joules(busy, work(nodes(gpu("H100"), 1, 8)))
    assert made is not None
    assert made.high <= 8 * 700 * 4.0


def test_fewer_devices_take_their_share_and_unknown_power_is_unknown() -> None:
    node = nodes(gpu("A100-80GB"), 1, 8)
    whole, one = step_energy_joules(HALF_BUSY, work(node)), step_energy_joules(HALF_BUSY, work(node), num_devices=1)
    assert whole is not None
    assert one is not None
    assert one.likely == pytest.approx(whole.likely / 8)
    assert step_energy_joules(HALF_BUSY, work(nodes(CPU, 1, 2))) is None


def test_a_kilowatt_hour_makes_the_grams_of_the_grid():
    assert carbon_grams(1000 * 3600 * 2.5, 400.0) == 2.5 * 400
