from __future__ import annotations

import pytest

from stratadvisor.validate.energy import measured_energy
from stratadvisor.validate.metrics import RunMetrics

START = {"event": "start", "device_energy_origin": "NVML energy counters", "host_energy_origin": "unknown: no RAPL"}


def step(number, joules, host=None):
    return {
        "event": "step",
        "step": number,
        "samples": 4,
        "device_energy_joules": joules,
        "host_energy_joules": host,
    }


def test_energy_is_the_difference_of_the_counters_over_the_samples_between():
    steps = [step(3, 100.0), step(4, None), step(5, 160.0)]
    found = measured_energy(RunMetrics(start=START, steps=steps), steps)
    assert found.joules_per_thousand_samples == pytest.approx(1000 * (160 - 100) / (4 + 4))
    assert found.origin == "devices: NVML energy counters; hosts: unknown: no RAPL"


def test_devices_and_hosts_are_added():
    start = START | {"host_energy_origin": "RAPL"}
    steps = [step(1, 10.0, 1.0), step(2, 20.0, 5.0)]
    found = measured_energy(RunMetrics(start=start, steps=steps), steps)
    assert found.joules_per_thousand_samples == pytest.approx(1000 * (10 + 4) / 4)


@pytest.mark.parametrize("steps", [[], [step(1, 10.0)], [step(1, 10.0), step(2, 10.0)]])
def test_a_counter_that_did_not_move_tells_nothing(steps):
    found = measured_energy(RunMetrics(start=START, steps=steps), steps)
    assert found.joules_per_thousand_samples is None
    assert "too few readings of the NVML energy counters" in found.origin


def test_an_old_log_says_nothing_of_energy():
    found = measured_energy(RunMetrics(start={"event": "start"}), [])
    assert found.joules_per_thousand_samples is None
    assert found.origin.count("unknown: the log does not say") == 2
