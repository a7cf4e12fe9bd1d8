from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest
import torch

from stratadvisor.runtime.config import TrainingError
from stratadvisor.runtime.loop import MAX_REPORTED_TOGETHER, reported_together
from stratadvisor.runtime.telemetry import FIELDS, METRICS_NAME, Meters, Telemetry, host_peak_bytes, step_event
from stratadvisor.schema import metrics


def rows(**columns: list[float]) -> torch.Tensor:
    count = len(next(iter(columns.values())))
    return torch.tensor([columns.get(name, [0.0] * count) for name in FIELDS], dtype=torch.float64).T


def event() -> dict[str, object]:
    return step_event(
        3,
        rows(
            loss_sum=[8.0, 4.0],
            tokens=[2.0, 4.0],
            step_seconds=[2.0, 3.0],
            data_wait_seconds=[0.25, 0.5],
            communication_seconds=[1.0, 0.5],
            peak=[100.0, 300.0],
            allocated=[math.nan, math.nan],
            device_joules=[40.0, 60.0],
            host_joules=[math.nan, 0.0],
        ),
        1e-3,
        8,
    )


def written(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / METRICS_NAME).read_text().splitlines()]


def test_the_keys_are_those_of_the_schema(tmp_path: Path) -> None:
    log = Telemetry(tmp_path, 0, append=False)
    cpu = torch.device("cpu")
    meters = Meters(cpu, counts_host=False)
    log.start(strategy="ddp", world_size=2, backend="gloo", device=cpu, num_parameters=7, meters=meters)
    log.step(event())
    assert len(written(tmp_path)) == 2  # each line is there at once
    log.loader(3, "slow", 2)
    log.change(3, "local", "a reason")
    log.end("completed")
    start, step, loader, change, end = written(tmp_path)
    assert tuple(loader) == metrics.LOADER_KEYS
    assert tuple(change) == metrics.CHANGE_KEYS
    assert tuple(start) == metrics.START_KEYS
    assert tuple(step) == metrics.STEP_KEYS
    assert tuple(end) == metrics.END_KEYS
    assert metrics.METRICS_NAME == METRICS_NAME
    assert end["peak_device_bytes"] == 300.0
    assert end["steps"] == 3
    assert end["device_energy_joules"] == 100.0


def test_a_step_is_the_mean_over_tokens_and_the_slowest_rank() -> None:
    found = event()
    assert found["loss"] == (8 + 4) / (2 + 4)
    assert found["tokens"] == 6
    assert found["step_seconds"] == 3.0
    assert found["communication_seconds"] == 1.0
    assert found["rank_step_seconds"] == [2 - 0.25 - 1, 3 - 0.5 - 0.5]
    assert found["compute_seconds"] == 3 - 0.5 - 0.5
    assert found["straggler_spread_seconds"] == (3 - 0.5 - 0.5) - (2 - 0.25 - 1)
    assert found["samples"] == 8
    assert found["peak_allocated_bytes"] is None
    assert found["device_energy_joules"] == 40 + 60
    assert found["host_energy_joules"] is None  # one host of two is unknown: their sum is


def test_communication_that_cannot_be_told_apart_is_unknown() -> None:
    found = step_event(
        1, rows(loss_sum=[1.0], tokens=[1.0], step_seconds=[2.0], communication_seconds=[math.nan]), 1e-3, 1
    )
    assert found["communication_seconds"] is None
    assert found["rank_step_seconds"] == [2.0]


def test_a_loss_that_is_not_a_number_is_still_json(tmp_path: Path) -> None:
    log = Telemetry(tmp_path, 0, append=False)
    log.step(step_event(1, rows(loss_sum=[math.inf], tokens=[1.0]), 1e-3, 1))
    assert written(tmp_path)[0]["loss"] is None


def test_other_ranks_write_nothing_and_a_resumed_run_appends(tmp_path: Path) -> None:
    Telemetry(tmp_path, 1, append=False).step(event())
    assert not (tmp_path / METRICS_NAME).exists()
    for append in (False, True):
        log = Telemetry(tmp_path, 0, append=append)
        log.step(event())
        log.end("interrupted")
    assert [e["event"] for e in written(tmp_path)] == ["step", "end"] * 2


def test_a_directory_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        Telemetry(tmp_path / "none", 0, append=False)


def test_the_peak_of_the_process_is_at_least_what_it_uses_now() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    now_bytes = pages * resource.getpagesize()
    assert host_peak_bytes() > 0.9 * now_bytes  # the kernel counts pages per thread before it adds them up


def test_short_steps_are_reported_together_about_once_a_second() -> None:
    times = torch.tensor([[0.1, 0.2], [0.3, 0.1]])  # the slowest rank counts: 0.3 s and 0.2 s
    assert reported_together(times, 1.0) == 4
    assert reported_together(times, 0.6) == 2
    assert reported_together(torch.tensor([[5.0]]), 1.0) == 1
    assert reported_together(torch.tensor([[1e-9]]), 1.0) == MAX_REPORTED_TOGETHER
