"""What a run's device holds, and which end of the band a measured peak is held against."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratadvisor.backtest.express import device_of
from stratadvisor.backtest.memory_score import MemoryOutcome, device_memory_bytes, predict_memory
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.run import verdicts

GIB = 2.0**30
CELLS = {
    "source": "someone",
    "model_name": "GPT-2-1.5B",
    "n_layers": "48",
    "hidden": "1600",
    "n_heads": "16",
    "seq_len": "1024",
    "gpu_model": "V100-SXM3-32GB",
    "n_gpus": "8",
    "gpus_per_node": "8",
    "precision": "fp16",
    "strategy": "ddp",
    "micro_batch": "1",
    "method": "full",
    "optimizer": "Adam",
    "outcome": "OOM",
}


def predicted(**cells: str) -> MemoryOutcome:
    found = predict_memory(Row(1, CELLS | cells))
    assert isinstance(found, MemoryOutcome), found
    return found


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H100-96GB-HBM2e-500W", 96), ("A100-80GB-SXM", 80), ("GH200-96GB", 96), ("V100-SXM3-32GB", 32)],
)
def test_a_size_in_the_name_is_the_memory(name: str, gib: int) -> None:
    assert device_memory_bytes(name, device_of(name)) == gib * GIB


def test_without_a_size_it_is_the_catalogs_or_unknown() -> None:
    found = device_of("RTX-3090")
    assert found is not None
    assert device_memory_bytes("RTX-3090", found) == found.memory_total_bytes
    assert device_memory_bytes("abacus", None) is None


def test_deepspeed_without_zero_keeps_its_fp16_optimizer() -> None:
    # 2 weights + 2 gradients + 4 master + 8 states + 8 copied for the step = 24 bytes a parameter
    own = predicted(source="deepspeedai/DeepSpeed docs/_tutorials/zero.md")
    parameters = own.estimate.terms_bytes["parameters"] / 2
    assert own.estimate.peak_bytes.likely > 24 * parameters
    assert own.estimate.terms_bytes["optimizer_states"] == pytest.approx(12 * parameters)
    assert own.verdict_right is True


def test_a_peak_is_above_the_band_only_beyond_its_high_end() -> None:
    run = predicted(outcome="", peak_mem_gib="20")
    inside = replace(run, measured_bytes=run.high_bytes)
    beyond = replace(run, measured_bytes=1.001 * run.high_bytes)
    assert not inside.above_high
    assert beyond.above_high
    told = verdicts([inside, beyond, inside, inside])
    assert told is not None
    assert told.above_high == 0.25
    assert told.too_low == 1.0  # all of them are more than 3 % above the likely peak
