"""What devices lack: the catalog says it, the configuration asks for it."""

from __future__ import annotations

import json

import pytest

from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.derive.declared import parse_gpus
from stratadvisor.lint.run import check_file


def codes(tmp_path, kind, data, gpus):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(data))
    cluster = planning_cluster(parse_gpus(gpus, inter_node=None, intra_node=None))
    return {f.code for f in check_file(file, kind=kind, cluster=cluster).findings if f.code.startswith("HW")}


def ds(precision, **zero):
    return {
        "train_micro_batch_size_per_gpu": 1,
        precision: {"enabled": True},
        "zero_optimization": {"stage": 3, **zero},
    }


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("deepspeed", ds("bf16")),
        ("accelerate", {"distributed_type": "MULTI_GPU", "num_processes": 8, "mixed_precision": "bf16"}),
        ("lightning", {"trainer": {"precision": "bf16-mixed"}}),
        ("transformers", {"output_dir": "o", "bf16": True}),
    ],
)
def test_bf16_is_for_devices_that_have_it(kind, data, tmp_path):
    assert codes(tmp_path, kind, data, "8xV100-32GB") == {"HW101"}
    assert codes(tmp_path, kind, data, "8xA100-40GB") == set()
    assert codes(tmp_path, kind, data, "8xA100-40GB,8xV100-32GB") == {"HW101"}


def test_deepspeed_refuses_fp16_before_volta(tmp_path):
    assert codes(tmp_path, "deepspeed", ds("fp16"), "4xP100") == {"HW102"}
    assert codes(tmp_path, "deepspeed", ds("fp16"), "4xV100-32GB") == set()


def test_the_trainer_refuses_tf32_before_ampere(tmp_path):
    data = {"output_dir": "o", "tf32": True}
    assert codes(tmp_path, "transformers", data, "8xV100-32GB") == {"HW103"}
    assert codes(tmp_path, "transformers", data, "8xA100-40GB") == set()


def test_default_buckets_are_too_large_for_a_small_card(tmp_path):
    # 5e8 elements x 2 bytes x (2 buckets that overlap + 1 to gather) = 3e9 bytes = 19 % of a T4's 15109 MiB
    small = ds("fp16", stage=2, overlap_comm=True)
    assert codes(tmp_path, "deepspeed", small, "2x2xT4") == {"HW104"}
    assert codes(tmp_path, "deepspeed", small, "8xA100-80GB") == set()
    less = ds("fp16", stage=2, overlap_comm=True, reduce_bucket_size=5e7, allgather_bucket_size=5e7)
    assert codes(tmp_path, "deepspeed", less, "2x2xT4") == set()
