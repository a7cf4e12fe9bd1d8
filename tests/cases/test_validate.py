"""Case O-71: the first failing child says what was wrong."""

from __future__ import annotations

import pytest
from plan_for_tests import small_plan

from stratadvisor.validate.classify import classify
from stratadvisor.validate.launch import Ended

MISMATCH = """[rank0]: Traceback (most recent call last):
[rank0]:   File "trainer.py", line 1, in <module>
[rank0]: ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:
[rank0]: - ds train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=8
[rank0]: - ds train_batch_size=8 vs hf train_batch_size (calculated)=64
[rank0]: The easiest method is to set these DeepSpeed config values to 'auto'.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
no optimal DeepSpeed configuration found
"""


def test_o71() -> None:
    """A child that dies of its configuration: its text and the keys that differ, not the summary above it."""
    ended = Ended(how="exit", exit_code=1, wall_seconds=20.0, peak_tree_bytes=0, cgroup_oom_kills=0)
    cause = classify(ended, MISMATCH, small_plan())
    assert cause.kind == "bad_config"
    assert cause.rank == 0
    assert "mismatch TrainingArguments" in cause.summary
    assert any("train_micro_batch_size_per_gpu=1 vs hf per_device_train_batch_size=8" in x for x in cause.evidence)
    assert "train_micro_batch_size_per_gpu" in cause.fix
    assert "per_device_train_batch_size" in cause.fix
    assert any("ds train_batch_size=8" in line for line in cause.evidence)
    told_apart = {
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n": "device_out_of_memory",
        "ModuleNotFoundError: No module named 'flash_attn'\n": "missing_package",
        "[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)\n": "hang",
        "AssertionError: Check batch related parameters. train_batch_size is not micro * 8 * 1\n": "bad_config",
    }
    for log, kind in told_apart.items():
        assert classify(ended, log, small_plan()).kind == kind, log
    assert classify(ended, "some error\n", small_plan()).kind == "unknown"
    assert ended.exit_code == pytest.approx(1)
