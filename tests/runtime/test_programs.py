"""Bundles run for real: two ranks over gloo, a tiny model, each run showing several things."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from runtime_bundle import (
    LAUNCHER,
    TIMEOUT_SECONDS,
    command,
    environment,
    events,
    finish,
    group,
    losses,
    make_bundle,
    make_config,
    train,
)

from stratadvisor.runtime import data, model
from stratadvisor.runtime.program import main

pytestmark = pytest.mark.process
STEPS = 10
ROUNDING = 1e-4
"""Losses are near 5; fp32 sums in another order differ by far less."""
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
LONG = group(devices_per_node=1, gradient_accumulation_steps=3, batch_per_device=6)
SHORT = group(devices_per_node=1, gradient_accumulation_steps=1, batch_per_device=2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process with the whole batch of eight sequences."""
    alone = group(devices_per_node=1, micro_batch_size=8, gradient_accumulation_steps=1, batch_per_device=8)
    bundle = make_config(tmp_path_factory.mktemp("alone") / "bundle", engine="single", groups=[alone])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
            patch.delenv(name, raising=False)
        assert main(model.build, data.token_dataset, bundle, ["--steps", "20"]) == 0
    return losses(bundle)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of runs made by the same two ranks, one after the other."""
    folder = tmp_path_factory.mktemp("runs")
    jobs: list[dict[str, Any]] = []

    def job(name: str, steps: int, *arguments: str, forget: str = "", **changes: Any) -> None:
        bundle = folder / name
        if not bundle.exists():
            make_config(bundle, **changes)
        gone = str(bundle / "run" / "checkpoints" / forget) if forget else None
        jobs.append({"bundle": str(bundle), "arguments": ["--steps", str(steps), *arguments], "forget": gone})

    job("ddp", STEPS, checkpoint_interval_steps=4, data_loader_workers=1)
    job("ddp", STEPS, "--resume", forget="step-00000010")
    job("uneven", STEPS, groups=[LONG, SHORT], strategy="uneven_ddp")
    job("bf16", STEPS, precision="bf16", compression="bf16")
    job("fp16", STEPS, precision="fp16", compression="fp16")
    job("fsdp2", 6, engine="fsdp2", activation_checkpointing="full")
    job("fsdp2", STEPS, "--resume")
    job("hsdp", 6, engine="hsdp", shard_degree=1, replicate_degree=2)
    job("lora", 6, engine="fsdp2", method="lora", precision="bf16", learning_rate=1e-2)
    lockstep = {"ranks_per_node": 1, "sync_warmup_fraction": 0.01}  # of 1000 steps: all ten
    job("hierarchical", 16, engine="hierarchical", sync_interval_steps=3, settings=lockstep)
    diloco = {
        "engine": "diloco",
        "sync_interval_steps": 5,
        "groups": [group(devices_per_node=1), SHORT],
        "settings": {"sync_warmup_fraction": 0.1},
        "total_steps": 60,
        "compression": "bf16",
    }
    job("diloco", 60, "--data", str(LICENSE), **diloco)
    job("diloco_resumed", 31, "--data", str(LICENSE), **diloco)  # 31: six of warm-up, then five times five
    job("diloco_resumed", 41, "--data", str(LICENSE), "--resume")
    delays = {"delay_compensation": 2.0, "delay_compensation_adaptive": True, "staleness_bound": 2}
    asynchronous = {"settings": delays, "total_steps": 60, "checkpoint_interval_steps": 25}
    job("async_sgd", 40, "--data", str(LICENSE), engine="async_sgd", **asynchronous)
    job("async_sgd", 60, "--data", str(LICENSE), "--resume")
    job("fp16_async", 6, engine="async_sgd", precision="fp16", compression="fp16")
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = Path(__file__).resolve().parents[1] / "runtime_several.py"
    finish([*LAUNCHER, str(program), str(folder / "jobs.json")])
    return folder


def near(found: list[float], expected: list[float]) -> bool:
    return found == pytest.approx(expected[: len(found)], abs=ROUNDING)


def deepspeed_config(stage: int) -> dict[str, object]:
    adam = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "torch_adam": True}
    return {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": adam},
        "zero_optimization": {"stage": stage},
    }


def test_the_reference_learns(reference: list[float]) -> None:
    assert reference[-1] < reference[0] - 0.5


def test_ddp_equals_one_process(runs: Path, reference: list[float]) -> None:
    found = events(runs / "ddp")[:STEPS]
    assert near([event["loss"] for event in found], reference)
    assert [event["step"] for event in found] == list(range(1, STEPS + 1))
    assert {event["tokens"] for event in found} == {8 * 32}
    assert all(event["communication_seconds"] is not None for event in found)
    assert [len(event["rank_step_seconds"]) for event in found] == [2] * STEPS
    assert events(runs / "ddp", "start")[0]["world_size"] == 2
    assert events(runs / "ddp", "end")[0]["reason"] == "completed"


def test_a_resumed_run_goes_on_exactly(runs: Path) -> None:
    whole, resumed = losses(runs / "ddp")[:STEPS], losses(runs / "ddp")[STEPS:]
    assert [event["step"] for event in events(runs / "ddp")[STEPS:]] == [9, 10]  # from the checkpoint of step 8
    assert resumed == pytest.approx(whole[8:], abs=1e-6)
    checkpoints = sorted(path.name for path in (runs / "ddp" / "run" / "checkpoints").iterdir())
    assert checkpoints == ["step-00000008", "step-00000010"]  # of 4, 8 and 10 the last two


def test_uneven_shares_equal_one_process(runs: Path, reference: list[float]) -> None:
    assert near(losses(runs / "uneven"), reference)
    assert len(losses(runs / "uneven")) == STEPS
    assert events(runs / "uneven", "start")[0]["strategy"] == "uneven_ddp"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_and_compressed_gradients_stay_near(runs: Path, reference: list[float], precision: str) -> None:
    found = losses(runs / precision)
    assert found == pytest.approx(reference[:STEPS], abs=0.02)  # bf16 has 8 bits: a relative error of 1/256 at worst
    assert not near(found, reference)


def test_fsdp_equals_one_process_and_resumes(runs: Path, reference: list[float]) -> None:
    found = events(runs / "fsdp2")
    assert [event["step"] for event in found] == list(range(1, STEPS + 1))
    assert near(losses(runs / "fsdp2"), reference)
    assert found[0]["communication_seconds"] is None


def test_hsdp_equals_one_process(runs: Path, reference: list[float]) -> None:
    assert len(losses(runs / "hsdp")) == 6
    assert near(losses(runs / "hsdp"), reference)


def test_adapters_learn_under_fsdp(runs: Path) -> None:
    assert losses(runs / "lora")[-1] < losses(runs / "lora")[0]


def test_nodes_that_average_in_every_warm_up_step_equal_one_process(runs: Path, reference: list[float]) -> None:
    found = losses(runs / "hierarchical")
    assert len(found) == 16
    assert near(found[:STEPS], reference)
    assert found[STEPS:] != pytest.approx(reference[STEPS:16], abs=ROUNDING)  # then each node on its own


def test_diloco_learns_text_with_unequal_workers(runs: Path) -> None:
    found = events(runs / "diloco")
    assert [event["step"] for event in found] == list(range(1, 61))
    assert {event["tokens"] for event in found} == {(4 + 2) * 32}
    assert found[-1]["loss"] < found[0]["loss"] - 1.0
    waits = [event["step"] for event in found if event["communication_seconds"] > 0]
    assert waits == [1, 2, 3, 4, 5, 6, 11, 16, 21, 26, 31, 36, 41, 46, 51, 56, 60]  # warm-up, every fifth, the end


def test_diloco_resumes_after_an_exchange_as_if_never_ended(runs: Path) -> None:
    resumed = losses(runs / "diloco_resumed")
    assert len(resumed) == 41
    assert near(resumed, losses(runs / "diloco"))


def test_async_learns_text_and_resumes(runs: Path) -> None:
    found = events(runs / "async_sgd")
    assert [event["step"] for event in found] == list(range(1, 61))
    assert found[-1]["loss"] < found[0]["loss"] - 1.0
    assert {event["tokens"] for event in found} == {8 * 32}


def test_no_gradient_is_staler_than_the_bound(runs: Path) -> None:
    lines = (runs / "async_sgd" / "run" / "delays.jsonl").read_text().splitlines()
    delays = [json.loads(line) for line in lines]
    assert len(delays) == 2 * 60
    assert max(delay["staleness"] for delay in delays) <= 2
    assert all(delay["staleness"] == 0 for delay in delays[:6])  # three rounds of warm-up in lockstep
    assert {delay["worker"] for delay in delays} == {0, 1}


def test_async_workers_scale_their_own_half_precision_losses(runs: Path, reference: list[float]) -> None:
    assert losses(runs / "fp16_async")[0] == pytest.approx(reference[0], abs=0.02)
    assert len(losses(runs / "fp16_async")) == 6


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_equals_one_process_for_twenty_steps(tmp_path: Path, reference: list[float], stage: int) -> None:
    pytest.importorskip("deepspeed")
    bundle = make_bundle(tmp_path / "bundle", engine="deepspeed", strategy=f"zero{stage}")
    (bundle / "ds_config.json").write_text(json.dumps(deepspeed_config(stage)))
    train(bundle, "--steps", "20")
    assert len(losses(bundle)) == 20
    assert near(losses(bundle), reference)


@pytest.mark.parametrize("engine", ["ddp", "diloco"])
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path: Path, engine: str) -> None:
    bundle = make_bundle(tmp_path / "bundle", engine=engine, sync_interval_steps=20, total_steps=0)
    process = subprocess.Popen(
        command(bundle), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = bundle / "run" / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while not (metrics.is_file() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no step was ever done"
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=TIMEOUT_SECONDS)[0]
    (end,) = events(bundle, "end")
    assert end["reason"] == "interrupted", output
    last = events(bundle)[-1]["step"]
    assert end["steps"] == last
    assert (bundle / "run" / "checkpoints" / f"step-{last:08d}" / "meta.json").is_file(), output
