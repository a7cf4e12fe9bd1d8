"""A DeepSpeed file that another configuration names is checked with it, and decides the memory."""

from __future__ import annotations

import json

import pytest

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.derive.declared import parse_gpus
from stratadvisor.errors import UsageError
from stratadvisor.lint.run import check_file

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "mics_shard_size": 4},
}
ARGUMENTS = {"output_dir": "o", "per_device_train_batch_size": 2, "bf16": True, "deepspeed": "ds.json"}
ACCELERATE = {
    "distributed_type": "DEEPSPEED",
    "num_processes": 8,
    "deepspeed_config": {"deepspeed_config_file": "ds.json"},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED, indent=1))
    return tmp_path


def check(folder, data, **options):
    file = folder / "main.json"
    file.write_text(json.dumps(data))
    return check_file(file, **options)


def test_its_findings_carry_its_name_and_lines(folder):
    for data in (ARGUMENTS, ACCELERATE):
        findings = {f.code: f for f in check(folder, data).findings}
        removed = findings["DS111"]
        assert (removed.file, removed.path) == (str(folder / "ds.json"), "zero_optimization.mics_shard_size")
        line = (folder / "ds.json").read_text().splitlines()[removed.line - 1]
        assert "mics_shard_size" in line


def test_arguments_and_file_must_agree(folder):
    (finding,) = [f for f in check(folder, ARGUMENTS).findings if f.code == "HF209"]
    assert (finding.path, finding.file) == ("train_micro_batch_size_per_gpu", str(folder / "ds.json"))
    agreed = check(folder, {**ARGUMENTS, "per_device_train_batch_size": 4})
    assert "HF209" not in {f.code for f in agreed.findings}


def test_it_decides_the_memory(folder):
    cluster = planning_cluster(parse_gpus("8xA100-80GB", inter_node=None, intra_node=None))
    options = {"cluster": cluster, "shape": shape_for_size(7e9), "checkpointing": True}
    codes = {f.code for f in check(folder, ARGUMENTS, **options).findings}
    assert "MEM103" in codes  # stage 3 over eight cards: 16 P / 8 = 12.6 GiB
    assert "MEM104" in {f.code for f in check(folder, {**ARGUMENTS, "deepspeed": "gone.json"}, **options).findings}


def test_only_files_beside_or_below_are_opened(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "ds.json"
    outside.write_text(json.dumps(DEEPSPEED))
    (folder / "link.json").symlink_to(outside)
    (folder / "circle.json").symlink_to("circle.json")
    for name in (str(outside), "../ds.json", "link.json", "circle.json", ".", "", "x" * 300, "x" * 5000, "a\0b"):
        assert "DS111" not in {f.code for f in check(folder, {**ARGUMENTS, "deepspeed": name}).findings}


def test_one_that_cannot_be_read_is_named(folder):
    (folder / "ds.json").write_text("{")
    with pytest.raises(UsageError, match=r"ds\.json is not JSON"):
        check(folder, ARGUMENTS)
