"""Loader workers: what is needed, what fits, what is said; samples that take known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_bundle import events, group, losses, make_config

from stratadvisor.runtime import data, loader, model
from stratadvisor.runtime.loader import (
    BATCHES_AHEAD,
    WAITING_WORKERS,
    WORKER_BYTES,
    Loading,
    Room,
    advise,
    allowed_workers,
    needed_workers,
    room,
)
from stratadvisor.runtime.program import main

WIDE = Room(cores=64, shared_memory_bytes=1e12, memory_bytes=1e12)


def loading(seconds: float, *, processor: float = 1.0, num_bytes: float = 1e6) -> Loading:
    return Loading(seconds=seconds, processor_seconds=processor * seconds, num_bytes=num_bytes)


@pytest.mark.parametrize(
    ("seconds", "workers"),
    [(0.0001, 0), (0.01, 1), (0.125, 1), (0.126, 2), (0.5, 4)],  # 8 samples in a step of 1 s
)
def test_workers_load_as_fast_as_the_rank_computes(seconds: float, workers: int) -> None:
    assert needed_workers(loading(seconds), 8, 1.0) == workers


def test_what_is_least_limits() -> None:
    one = loading(0.1)
    assert allowed_workers(one, WIDE, 4) == (64, "processors")
    buffers = BATCHES_AHEAD * 4 * one.num_bytes
    tight = Room(cores=64, shared_memory_bytes=3.5 * buffers, memory_bytes=1e12)
    assert allowed_workers(one, tight, 4) == (3, "shared memory (/dev/shm)")
    little = Room(cores=64, shared_memory_bytes=None, memory_bytes=2.5 * (buffers + WORKER_BYTES))
    assert allowed_workers(one, little, 4) == (2, "memory")


def test_workers_that_wait_for_storage_share_a_processor() -> None:
    few = Room(cores=2, shared_memory_bytes=None, memory_bytes=None)
    assert allowed_workers(loading(0.1), few, 4)[0] == 2
    assert allowed_workers(loading(0.1, processor=0.1), few, 4)[0] == 2 * WAITING_WORKERS


def test_the_advice_says_what_is_needed_and_what_stops_it() -> None:
    def advice(seconds: float, where: Room = WIDE, now: int = 0) -> Any:
        return advise(loading(seconds), where, samples_per_step=8, micro_batch=4, compute_seconds=1.0, now=now)

    few = Room(cores=1, shared_memory_bytes=None, memory_bytes=None)
    assert advice(0.5).workers == 4
    assert advice(0.5).reason == (
        "a sample takes 500 ms to load (processor-bound), 8 of them 400% of a step: 4 loader workers, 0 now"
    )
    assert advice(0.5, few).workers == 1
    assert advice(0.5, few).reason.endswith("4 loader workers are needed, processors allow 1")
    assert advice(1e-6).reason.endswith("no loader workers are needed")


class Clocked(torch.utils.data.Dataset[Any]):
    """Each sample moves a wall clock and a processor clock by known times."""

    fixed_tokens = True

    def __init__(self, inner: Any, wall: float, processor: float) -> None:
        self.inner, self.step, self.now = inner, (wall, processor), [0.0, 0.0]

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        self.now = [now + step for now, step in zip(self.now, self.step, strict=True)]
        return self.inner[index]


@pytest.mark.parametrize(("processor", "bound"), [(0.001, "storage"), (0.009, "processor")])
def test_waiting_for_storage_and_computing_are_told_apart(
    processor: float, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Clocked(data.SyntheticTokens(256, 16, seed=1), 0.01, processor)
    monkeypatch.setattr(loader.time, "perf_counter", lambda: dataset.now[0])
    monkeypatch.setattr(loader, "_processor_seconds", lambda: dataset.now[1])
    found = loader.measure(dataset, 100, seed=1)
    assert found.seconds == pytest.approx(0.01)
    assert found.processor_seconds == pytest.approx(processor)
    assert found.bound == bound
    assert found.num_bytes == 2 * 16 * 8  # inputs and labels in int64


def test_a_thread_that_computes_uses_processor_time() -> None:
    before = loader._processor_seconds()
    sum(range(200_000))
    assert loader._processor_seconds() > before


def test_the_room_of_a_rank_is_its_share_of_the_node() -> None:
    alone, four = room(1), room(4)
    assert four.cores <= alone.cores
    assert alone.memory_bytes is None or alone.memory_bytes > 0


def test_a_run_says_what_its_data_need_and_takes_it_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)

    told = {}
    for name, options in (("advised", []), ("taken", ["--tune-loader"])):
        bundle = make_config(tmp_path / name, engine="single", groups=[group(devices_per_node=1)])
        assert main(model.build, data.token_dataset, bundle, ["--steps", "8", *options]) == 0
        (event,) = events(bundle, "loader")
        assert "-bound)" in event["reason"]
        told[name] = losses(bundle)
    assert told["advised"] == pytest.approx(told["taken"])  # the same samples in the same order
    assert json.loads((tmp_path / "taken" / "train_config.json").read_text()).get("data_loader_workers") is None
