"""Keys and values that guides still show and that current releases refuse, ignore or renamed: each one is found.

What is in the same lists but in no configuration file, functions of torch and variables of the environment, is no
matter of ``check``.
"""

from __future__ import annotations

import pytest
from lint_examples import BASE, merged, written

from stratadvisor.lint.run import check_file

LIGHTNING = (
    "gradient_checkpointing",
    "reduce_on_epoch_end",
    "sync_mode",
    "find_unused_parameters",
    "gpus",
    "num_processes",
    "accelerator_type",
    "amp_level",
    "amp_backend",
    "replace_sampler_ddp",
    "checkpoint_callback",
    "weights_summary",
    "resume_from_checkpoint",
    "auto_lr_find",
    "auto_scale_batch_size",
    "stochastic_weight_avg",
    "gradient_compression",
    "move_metrics_to_cpu",
    "track_grad_norm",
)
TRAINER = {
    "evaluation_strategy": "steps",
    "no_cuda": True,
    "sharded_ddp": "simple",
    "half_precision_backend": "auto",
    "fp16_opt_level": "O1",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
    "tpu_num_cores": 8,
    "use_ipex": True,
    "adafactor": True,
}
DEEPSPEED_REFUSED = {
    "compression_training": {"weight_quantization": {}},
    "elasticity": {"enabled": True},
    "sparse_gradients": True,
    "nebula": {"enabled": True},
    "optimizer": {"params": {"max_grad_norm": 1.0}},
    "zero_optimization": {"stage": 2, "cpu_offload_params": True},
}
DEEPSPEED_IGNORED = {
    "gradient_compression": {"bits": 8},
    "async": True,
    "communication": {"overlap": True},
    "hierarchical_allreduce": True,
}
ZERO_OLD = (
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "stage3_gather_fp16_weights_on_model_save",
)
ZERO_GONE = {"mics_shard_size": 8, "mics_hierarchical_params_gather": True, "zeropp_loco_param": {"err_beta": 0.8}}


def findings(folder, kind, changes, **options):
    return check_file(written(folder, merged(BASE[kind], changes), kind), kind=kind, **options).findings


def about(found, key):
    return [f for f in found if key in f.path and f.severity != "note"]


@pytest.mark.parametrize("key", LIGHTNING)
def test_trainer_arguments_of_lightning_that_never_were_or_are_gone(key, tmp_path):
    (found,) = about(findings(tmp_path, "lightning", {key: True}), key)
    assert found.severity == "error"
    assert found.fix


@pytest.mark.parametrize("name", ["dp", "horovod", "bagua", "ddp_sharded", "fairscale", "colossalai"])
def test_strategies_that_lightning_no_longer_registers(name, tmp_path):
    assert "PL201" in {f.code for f in findings(tmp_path, "lightning", {"strategy": name})}
    assert "PL201" not in {f.code for f in findings(tmp_path, "lightning", {"strategy": "ddp_spawn"})}


@pytest.mark.parametrize("key", TRAINER)
def test_arguments_that_the_trainer_no_longer_has(key, tmp_path):
    assert about(findings(tmp_path, "transformers", {key: TRAINER[key]}), key)


def test_arguments_that_the_trainer_has(tmp_path):
    right = {
        "eval_strategy": "steps",
        "use_cpu": True,
        "dataloader_num_workers": 2,
        "dataloader_prefetch_factor": 2,
        "dataloader_persistent_workers": True,
        "ddp_broadcast_buffers": False,
        "ddp_bucket_cap_mb": 25,
        "eval_steps": 10,
    }
    assert not findings(tmp_path, "transformers", right)
    old = findings(tmp_path, "transformers", {"gradient_checkpointing": True})  # deprecated since 5.23, still read
    assert [f.severity for f in old] == ["warning"]
    alone = findings(tmp_path, "transformers", {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 0})
    assert "HF202" in {f.code for f in alone}


@pytest.mark.parametrize("key", DEEPSPEED_REFUSED)
def test_keys_that_deepspeed_refuses(key, tmp_path):
    found = findings(tmp_path, "deepspeed", {key: DEEPSPEED_REFUSED[key]})
    assert any(f.severity == "error" and f.path.startswith(key) and f.fix for f in found)


@pytest.mark.parametrize("key", DEEPSPEED_IGNORED)
def test_keys_that_deepspeed_ignores(key, tmp_path):
    (found,) = about(findings(tmp_path, "deepspeed", {key: DEEPSPEED_IGNORED[key]}), key)
    assert found.severity == "warning"
    assert found.fix


@pytest.mark.parametrize("key", ZERO_OLD)
def test_old_names_in_the_zero_section(key, tmp_path):
    found = about(findings(tmp_path, "deepspeed", {"zero_optimization": {"stage": 3, key: True}}), key)
    assert found
    assert all(f.fix for f in found)


@pytest.mark.parametrize("key", ZERO_GONE)
def test_keys_of_the_zero_section_that_are_gone(key, tmp_path):
    found = about(findings(tmp_path, "deepspeed", {"zero_optimization": {"stage": 3, key: ZERO_GONE[key]}}), key)
    assert [f.severity for f in found] == ["error"]


@pytest.mark.parametrize("more", [{"zero_optimization": {"stage": 1}}, {"bf16": {"enabled": True}}, {}])
def test_one_bit_optimizers_are_gone_with_everything(more, tmp_path):
    found = findings(tmp_path, "deepspeed", {"optimizer": {"type": "OneBitAdam"}, **more})
    assert "DS501" in {f.code for f in found}


def test_sharding_strategies_of_fsdp1_with_fsdp2(tmp_path):
    section = {"fsdp_version": 2, "fsdp_sharding_strategy": "FULL_SHARD"}
    found = findings(tmp_path, "accelerate", {"distributed_type": "FSDP", "fsdp_config": section})
    (told,) = about(found, "fsdp_sharding_strategy")
    assert "fsdp_reshard_after_forward" in told.fix
    unsaid = findings(
        tmp_path, "accelerate", {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": False}}
    )
    assert "ACC305" in {f.code for f in unsaid}
