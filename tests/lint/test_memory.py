"""What a configuration needs, against the cost model that plans are made with, and the cases it must get right."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.memory import estimate
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.derive.declared import parse_gpus
from stratadvisor.lint.layout import setting_of
from stratadvisor.lint.run import check_file
from stratadvisor.schema.layout import Layout
from stratadvisor.units import format_bytes

SEVEN = shape_for_size(7e9)


def cluster(gpus: str):
    return planning_cluster(parse_gpus(gpus, inter_node=None, intra_node=None))


def memory_findings(tmp_path, data, gpus, shape=SEVEN, kind="deepspeed", **options):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data))
    checked = check_file(file, kind=kind, cluster=cluster(gpus), shape=shape, **options)
    return [f for f in checked.findings if f.code.startswith("MEM")]


def ds(stage, **zero):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **zero},
    }


def test_the_figure_is_the_cost_model_s(tmp_path):
    (finding,) = memory_findings(tmp_path, ds(3), "8xA100-80GB", checkpointing=True)
    layout = Layout(
        engine="deepspeed",
        data_parallel_shard_degree=8,
        sharding="parameters",
        precision="bf16",
        activation_checkpointing="full",
    )
    device = cluster("8xA100-80GB").classes[0].device
    expected = estimate(
        SEVEN, layout, device_kind="cuda", ranks_per_node=8, device_memory_bytes=device.memory_total_bytes
    )
    assert f"needs {format_bytes(expected.peak_bytes.likely)} " in finding.message
    assert finding.code == "MEM103"


def test_seven_billion_on_one_card_has_states_of_sixteen_bytes_each(tmp_path):
    (finding,) = memory_findings(tmp_path, ds(3), "1xA100-80GB", checkpointing=True)
    assert finding.code == "MEM101"  # 6.74e9 x 16 B = 100 GiB: dividing by one saves nothing


def test_stages_need_less_and_less(tmp_path):
    needs = []
    for stage in (0, 1, 2, 3):
        (finding,) = memory_findings(tmp_path, ds(stage), "8xA100-80GB", checkpointing=True)
        needs.append(float(finding.message.split()[1]))
    assert needs == sorted(needs, reverse=True)
    assert needs[0] > 100 > needs[1]


def test_offload_is_weighed_against_the_host(tmp_path):
    gpus = "1xA100-80GB"
    view = cluster(gpus)
    assert view.classes[0].host_memory_bytes is None  # a one-line cluster says nothing about hosts
    for host, code in ((64 * 1024**3, "MEM101"), (512 * 1024**3, "MEM103")):
        small = replace(view, classes=(replace(view.classes[0], host_memory_bytes=float(host)),))
        file = tmp_path / "config.json"
        file.write_text(json.dumps(ds(2, offload_optimizer={"device": "cpu"})))
        checked = check_file(file, cluster=small, shape=SEVEN, checkpointing=True)
        (finding,) = [f for f in checked.findings if f.code.startswith("MEM")]
        assert finding.code == code, finding.message


def test_the_tightest_class_of_a_mixed_cluster_is_named(tmp_path):
    findings = memory_findings(tmp_path, ds(2), "1x4xA100-80GB,1x4xRTX-3090", checkpointing=True)
    codes = {("3090" in f.message): f.code for f in findings}
    assert codes[True] == "MEM101"
    assert codes[False] == "MEM103"


def test_what_the_file_does_not_say_is_named_as_assumed(tmp_path):
    (finding,) = memory_findings(
        tmp_path,
        {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": {"fsdp_version": 2}},
        "8xA100-80GB",
        kind="accelerate",
    )
    assert "assumed" in finding.message
    assert "micro batch 1" in finding.message
    assert "with activation checkpointing" in finding.message


def test_a_file_that_names_another_says_so(tmp_path):
    data = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 8,
        "deepspeed_config": {"deepspeed_config_file": "z.json"},
    }
    (finding,) = memory_findings(tmp_path, data, "8xA100-80GB", kind="accelerate")
    assert (finding.code, "z.json" in finding.message) == ("MEM104", True)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("deepspeed", ds(3, offload_param={"device": "cpu"}), {"sharding": "parameters", "parameter_offload": "cpu"}),
        ("deepspeed", ds(2, offload_param={"device": "cpu"}), {"sharding": "gradients", "parameter_offload": "none"}),
        ("deepspeed", ds(2, cpu_offload=True), {"optimizer_offload": "cpu"}),
        (
            "deepspeed",
            {"train_batch_size": 64, "fp16": {"enabled": True}},
            {"micro_batch_size": 8, "precision": "fp16"},
        ),
        (
            "deepspeed",
            {"train_batch_size": 64, "gradient_accumulation_steps": 4},
            {"micro_batch_size": 2, "precision": "fp32"},
        ),
        ("deepspeed", {"bf16": {"enabled": "auto"}}, {"precision": None, "micro_batch_size": None}),
        (
            "accelerate",
            {"distributed_type": "MULTI_GPU", "mixed_precision": "fp16"},
            {"engine": "ddp", "precision": "fp16"},
        ),
        (
            "accelerate",
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 1}},
            {"sharding": "optimizer"},
        ),
        (
            "accelerate",
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": False}},
            {"engine": "fsdp2", "sharding": "gradients"},
        ),
        (
            "lightning",
            {"trainer": {"strategy": "deepspeed_stage_3_offload"}},
            {"sharding": "parameters", "optimizer_offload": "cpu"},
        ),
        ("lightning", {"strategy": "fsdp", "precision": "bf16-mixed"}, {"sharding": "parameters", "precision": "bf16"}),
        ("lightning", {"strategy": "ddp", "precision": "bf16-true"}, {"engine": "ddp", "precision": "bf16_pure"}),
        ("transformers", {"bf16": True, "optim": "adamw_bnb_8bit"}, {"micro_batch_size": 8, "optimizer": "adamw8bit"}),
        ("transformers", {"fsdp": "full_shard offload"}, {"engine": "fsdp2", "parameter_offload": "cpu"}),
        ("transformers", {"activation_checkpointing": True}, {"activation_checkpointing": "full", "precision": "fp32"}),
    ],
)
def test_what_a_configuration_sets(kind, data, expected):
    found = setting_of(kind, data, 8)
    assert {name: getattr(found, name) for name in expected} == expected
