"""Counters of energy, from files and a library that stand for those of a machine."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stratadvisor.runtime import energy
from stratadvisor.runtime.energy import EnergyMeter, EnergyUnknownError, Rapl, device_meter, host_meter

RANGE_UJ = 262143328850
"""max_energy_range_uj as Intel's counters have it."""


def zone(root: Path, folder: str, name: str, microjoules: int) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    (place / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return place / "energy_uj"


def test_packages_and_memory_are_added_and_parts_of_a_package_are_not(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 0)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    counter = Rapl(tmp_path)
    package.write_text("4000000")
    core.write_text("2000000")
    memory.write_text("500000")
    assert counter() == pytest.approx(3.0 + 0.5)


def test_a_counter_that_wrapped_goes_on(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", RANGE_UJ - 1_000_000)
    counter = Rapl(tmp_path)
    package.write_text("2000000")
    assert counter() == pytest.approx(1.0 + 2.0)


def test_no_counters_are_unknown_and_say_why(tmp_path: Path) -> None:
    meter = host_meter(tmp_path)
    assert math.isnan(meter.joules())
    assert meter.origin == f"unknown: no RAPL counters under {tmp_path}"
    assert device_meter(torch.device("cpu")).origin == "unknown: a processor is counted with its host"


def test_a_counter_that_fails_later_becomes_unknown() -> None:
    readings = iter([5.0])

    def counter() -> float:
        for value in readings:
            return value
        raise EnergyUnknownError("gone")

    meter = EnergyMeter(lambda: counter, "a counter")
    assert meter.origin == "a counter"
    assert math.isnan(meter.joules())
    assert meter.origin == "unknown: gone"


def test_a_costly_counter_is_read_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(energy.time, "perf_counter", lambda: now[0])

    def counter() -> float:
        now[0] += 0.01  # what a reading costs
        return 10 * now[0]

    meter = EnergyMeter(lambda: counter, "a counter")
    first = meter.joules()
    now[0] += 0.01 / energy.COST_SHARE - 0.02
    assert meter.joules() == first
    now[0] += 0.03
    assert meter.joules() > first


DOUBLE = Path(__file__).parents[1] / "nvml_double" / "nvml_double.c"
READ = """
import sys
from stratadvisor.runtime.energy import EnergyMeter, Nvml
meter = EnergyMeter(lambda: Nvml(sys.argv[1]), "NVML")
print(meter.joules(), meter.origin)
"""


def test_the_counter_of_a_gpu_is_read_through_the_library(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the double of libnvidia-ml cannot be compiled")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(DOUBLE)], check=True, timeout=300)
    machine = tmp_path / "machine"
    # each reading finds 250 mJ more: one when the device is found, one as the start, one as the answer
    machine.write_text("device\nuuid GPU-1\nenergy_mj 7000\nenergy_mj_more 250\ndevice\nuuid GPU-2\nenergy_mj !3\n")

    def read(uuid: str) -> str:
        variables = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "NVML_DOUBLE_MACHINE": str(machine)}
        command = [sys.executable, "-c", READ, uuid]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=300).stdout

    assert read("1") == "0.25 NVML\n"
    assert read("GPU-2") == "nan unknown: NVML: energy counter: not supported by this device\n"
    assert read("GPU-3") == "nan unknown: NVML: device GPU-3: not found\n"
