"""What a file sets, in the terms of a layout; and faults that stand in places of their own."""

from __future__ import annotations

import json

import pytest
from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.derive.declared import parse_gpus
from stratadvisor.errors import UsageError
from stratadvisor.lint.layout import setting_of
from stratadvisor.lint.run import check_file

DS = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0}
ACCELERATE = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 4}


def checked(tmp_path, data, **options):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data))
    return [(f.code, f.path) for f in check_file(file, **options).findings]


def test_zero_optimization_as_a_truth_value_is_stage_one():
    # DeepSpeed, runtime/zero/config.py: a bare true is read as stage 1, false as none
    assert setting_of("deepspeed", {**DS, "zero_optimization": True}, 8).sharding == "optimizer"
    assert setting_of("deepspeed", {**DS, "zero_optimization": False}, 8).sharding == "none"


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("deepspeed_stage_3_offload", ("deepspeed", "parameters", "cpu", "cpu")),
        ("deepspeed_stage_2_offload", ("deepspeed", "gradients", "cpu", "none")),
        (
            {"class_path": "DeepSpeedStrategy", "init_args": {"stage": 1, "offload_optimizer": True}},
            ("deepspeed", "optimizer", "cpu", "none"),
        ),
        (
            {"class_path": "DeepSpeedStrategy", "init_args": {"config": {"zero_optimization": {"stage": 3}}}},
            ("deepspeed", "parameters", "none", "none"),
        ),
        ("ddp", ("ddp", "none", "none", "none")),
        ("single_device", ("torch", "none", "none", "none")),
    ],
)
def test_lightnings_strategy_is_a_name_or_a_class_with_arguments(strategy, expected):
    found = setting_of("lightning", {"strategy": strategy, "precision": "bf16-mixed", "devices": 8}, 8)
    assert (found.engine, found.sharding, found.optimizer_offload, found.parameter_offload) == expected
    assert found.precision == "bf16"


@pytest.mark.parametrize(
    ("words", "sharding", "offload"),
    [
        ("full_shard", "parameters", "none"),
        ("shard_grad_op", "gradients", "none"),
        ("full_shard offload", "parameters", "cpu"),
        ("shard_grad_op offload", "gradients", "cpu"),
    ],
)
def test_words_of_the_trainers_fsdp_option_say_what_is_divided(words, sharding, offload):
    found = setting_of("transformers", {"output_dir": "o", "fsdp": words}, 8)
    assert (found.engine, found.sharding, found.optimizer_offload) == ("fsdp2", sharding, offload)


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("deepspeed", {**DS, "zero_optimization": {"stage": "auto"}}, None),
        ("deepspeed", {**DS, "zero_optimization": {"stage": 3, "offload_optimizer": "cpu"}}, "DS114"),
        (
            "deepspeed",
            {**DS, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}},
            "DS406",
        ),
        ("accelerate", {**ACCELERATE, "distributed_type": "FSDP", "fsdp_config": 3}, "ACC105"),
        ("accelerate", {**ACCELERATE, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 3}}, "ACC105"),
        (
            "accelerate",
            {
                **ACCELERATE,
                "distributed_type": "FSDP",
                "fsdp_config": {"fsdp_version": 1, "fsdp_reshard_after_forward": True},
            },
            "ACC304",
        ),
        (
            "accelerate",
            {**ACCELERATE, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 7}},
            "ACC105",
        ),
        ("lightning", {"strategy": None, "devices": 1}, "PL201"),
        ("lightning", {"strategy": "DDPStrategy", "devices": 1}, None),
        (
            "lightning",
            {
                "devices": 1,
                "strategy": {
                    "class_path": "DeepSpeedStrategy",
                    "init_args": {"config": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 9}}},
                },
            },
            "DS401",
        ),
    ],
)
def test_what_is_wrong_in_a_place_of_its_own_is_found(tmp_path, kind, data, expected):
    codes = {code for code, _ in checked(tmp_path, data, kind=kind)}
    if expected is None:
        assert not codes & {"DS401", "DS114", "DS406", "PL201"}
    else:
        assert expected in codes


def test_the_clouds_own_launcher_is_not_judged(tmp_path):
    # SageMaker decides processes and machines by itself
    assert checked(tmp_path, {"compute_environment": "AMAZON_SAGEMAKER"}, kind="accelerate") == []
    assert checked(tmp_path, {"compute_environment": "LOCAL_MACHINE"}, kind="accelerate") != []


def test_ranks_that_share_a_sequence_leave_the_batch_open(tmp_path):
    data = {**DS, "train_batch_size": 4, "gradient_accumulation_steps": 1}
    # 1 x 1 x 8 ranks are 8 sequences and not 4, unless every two ranks work on one
    assert "DS201" in {code for code, _ in checked(tmp_path, data, kind="deepspeed", world_size=8)}
    assert checked(tmp_path, {**data, "sequence_parallel_size": 2}, kind="deepspeed", world_size=8) == []


@pytest.mark.parametrize(("option", "words"), [({"kind": "horovod"}, "--kind"), ({"loader": "keras"}, "--loader")])
def test_an_unknown_reader_is_refused_with_those_that_exist(tmp_path, option, words):
    with pytest.raises(UsageError, match=f"{words} .* is not one of .*, .*lightning"):
        checked(tmp_path, DS, **option)


def test_memory_that_nobody_knows_is_said_and_not_judged(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**DS, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}))
    told = {}
    for known in (True, False):
        where = cluster(nodes(gpu("A100-80GB", memory_known=known)))
        found = check_file(
            file, kind="deepspeed", cluster=where, shape=shape_for_size(7e9), checkpointing=True
        ).findings
        (told[known],) = [f for f in found if f.code.startswith("MEM")]
    assert (told[True].code, told[False].code) == ("MEM103", "MEM104")
    assert told[False].message.endswith("; the device's memory is not known")
    assert told[False].message.removesuffix("; the device's memory is not known") in told[True].message.replace(
        " of 80 GiB", ""
    )


@pytest.mark.parametrize(
    ("size", "length", "micro", "checkpointing", "advice"),
    [
        # 16 bytes for each of 7e9 parameters against one card's 80 GB: states fill it
        (7e9, 512, 1, True, "ZeRO 3 or FSDP"),
        # 1e9 parameters are 16 GB of states; 64 sequences of 8192 tokens keep far more
        (1e9, 8192, 64, False, "activation checkpointing, or a smaller micro batch"),
        (1e9, 8192, 64, True, "a smaller micro batch or shorter sequences"),
    ],
)
def test_the_largest_term_decides_what_is_advised(tmp_path, size, length, micro, checkpointing, advice):
    data = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 0},
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data))
    found = check_file(
        file,
        kind="deepspeed",
        cluster=planning_cluster(parse_gpus("8xA100-80GB")),
        shape=shape_for_size(size),
        sequence_length=length,
        checkpointing=checkpointing,
    ).findings
    (memory,) = [f for f in found if f.code.startswith("MEM")]
    assert memory.code == "MEM101"
    assert memory.fix.startswith(advice)


def test_processors_have_no_units_to_lack_and_auto_buckets_no_size(tmp_path):
    large = {"stage": 2, "reduce_bucket_size": 20_000_000_000}  # 40 GB in 16 bits
    data = {**DS, "bf16": {"enabled": True}, "zero_optimization": large}

    def hardware(config, where):
        return [c for c, _ in checked(tmp_path, config, kind="deepspeed", cluster=where) if c.startswith("HW")]

    cards = cluster(nodes(gpu("A100-40GB")))
    assert hardware(data, cards) == ["HW104"]
    assert hardware({**data, "zero_optimization": {**large, "reduce_bucket_size": "auto"}}, cards) == []
    assert hardware(data, cluster(nodes(cpu()), backend="gloo")) == []
