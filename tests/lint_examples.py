"""A bad and a good configuration for every code of ``stratadvisor check``."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DELETE = "<delete>"
BASE: dict[str, dict[str, Any]] = {
    "deepspeed": {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    },
    "accelerate": {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "mixed_precision": "bf16",
        "num_machines": 1,
        "num_processes": 4,
    },
    "lightning": {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False},
    "transformers": {"output_dir": "out", "per_device_train_batch_size": 2, "learning_rate": 1e-4},
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """Changes to a right configuration of its kind: one with the fault, one without."""

    kind: str
    bad: dict[str, Any]
    good: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    judge: str = "parser"
    """parser: the framework's parser refuses the bad one. engine: DeepSpeed's engine does. accepts: the framework takes
    it (ignored or deprecated). elsewhere: only a real run, a GPU or several machines would show it."""


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with nested changes; DELETE removes a key."""
    result = copy.deepcopy(base)
    for key, value in changes.items():
        if value == DELETE:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def config(example: Example, which: str) -> dict[str, Any]:
    """Return the whole bad or good configuration."""
    return merged(BASE[example.kind], example.bad if which == "bad" else example.good)


def written(folder: Path, data: dict[str, Any], kind: str) -> Path:
    """Write a configuration as its users do: JSON for DeepSpeed, YAML for the others."""
    path = folder / ("ds_config.json" if kind == "deepspeed" else "config.yaml")
    path.write_text(json.dumps(data, indent=2) if kind == "deepspeed" else yaml.safe_dump(data, sort_keys=False))
    return path


def _ds(bad: dict[str, Any], good: dict[str, Any] | None = None, judge: str = "parser", **options: Any) -> Example:
    return Example(kind="deepspeed", bad=bad, good=good or {}, judge=judge, options=options)


def _acc(bad: dict[str, Any], good: dict[str, Any] | None = None, judge: str = "parser", **options: Any) -> Example:
    return Example(kind="accelerate", bad=bad, good=good or {}, judge=judge, options=options)


def _pl(bad: dict[str, Any], good: dict[str, Any] | None = None, judge: str = "parser") -> Example:
    return Example(kind="lightning", bad=bad, good=good or {}, judge=judge)


def _hf(bad: dict[str, Any], good: dict[str, Any] | None = None, judge: str = "parser", **options: Any) -> Example:
    return Example(kind="transformers", bad=bad, good=good or {}, judge=judge, options=options)


def _zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


CPU = {"device": "cpu"}
TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
FSDP2 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True}}
FSDP1 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD"}}


def _fsdp(base: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return merged(base, {"fsdp_config": keys})


EXAMPLES: dict[str, list[Example]] = {
    "GEN102": [_hf({"learning_rate": "1e-5"}, {"learning_rate": 1e-5}, "elsewhere")],
    # DeepSpeed: keys
    "DS101": [_ds({"gradient_acumulation": 2}, {}, "accepts"), _ds({"my_key": 1}, {}, "accepts")],
    "DS102": [
        _ds(_zero(stage=2, reduce_bucket_sise=100), _zero(stage=2, reduce_bucket_size=100)),
        _ds({"bf16": {"enable": True}}, {"bf16": {"enabled": True}}),
        _ds(_zero(stage=2, offload_optimizer={"device": "cpu", "pinned": True}), _zero(stage=2, offload_optimizer=CPU)),
    ],
    "DS103": [_ds({"data_types": {"grad_dtype": "fp32"}}, {"data_types": {"grad_accum_dtype": "fp32"}}, "accepts")],
    "DS111": [
        *(
            _ds({key: {"enabled": True}})
            for key in (
                "compression_training",
                "amp",
                "elasticity",
                "nebula",
                "sparse_attention",
                "quantize_training",
                "eigenvalue",
                "progressive_layer_drop",
                "curriculum_learning",
            )
        ),
        _ds({"sparse_gradients": True}),
        _ds({"graph_harvesting": True}),
        _ds(_zero(stage=3, mics_shard_size=4), _zero(stage=3)),
        _ds(_zero(stage=3, mics_hierarchical_params_gather=True), _zero(stage=3)),
        _ds(_zero(stage=3, zeropp_loco_param={}), _zero(stage=3)),
        _ds({"optimizer": {"params": {"max_grad_norm": 1.0}}}, {}, "engine"),
    ],
    "DS112": [
        _ds(_zero(stage=2, cpu_offload=True), _zero(stage=2, offload_optimizer=CPU), "accepts"),
        _ds(_zero(stage=3, cpu_offload_param=True), _zero(stage=3, offload_param=CPU), "accepts"),
        _ds(_zero(stage=3, cpu_offload_use_pin_memory=True), _zero(stage=3), "accepts"),
        _ds(
            _zero(stage=3, stage3_gather_fp16_weights_on_model_save=True),
            _zero(stage=3, stage3_gather_16bit_weights_on_model_save=True),
            "accepts",
        ),
        _ds({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}, "accepts"),
        _ds({"aio": {"thread_count": 1}}, {"aio": {"intra_op_parallelism": 1}}, "accepts"),
        _ds({"seq_parallel_comm_data_type": "fp32"}, {"seq_parallel_communication_data_type": "fp32"}, "accepts"),
    ],
    "DS113": [
        *(
            _ds({key: {"enabled": True}}, {}, "accepts")
            for key in ("gradient_compression", "communication", "gradient_checkpointing", "mixed_precision")
        ),
        _ds({"async": True}, {}, "accepts"),
        _ds({"hierarchical_allreduce": True}, {}, "accepts"),
        _ds({"max_grad_norm": 1.0}, {}, "accepts"),
        _ds(_zero(stage=3, cpu_offload_params=True), _zero(stage=3)),
    ],
    "DS114": [
        _ds({MICRO: 0}),
        _ds({MICRO: -1}),
        _ds(_zero(stage=2, reduce_bucket_size=0), _zero(stage=2, reduce_bucket_size=5e8)),
        _ds({"fp16": True}, {"fp16": {"enabled": True}}),
    ],
    "DS115": [
        _ds({"communication_data_type": "int8"}, {"communication_data_type": "bf16"}),
        _ds({"gradient_allreduce_op": "max"}, {"gradient_allreduce_op": "sum"}),
        _ds(_zero(stage=2, offload_optimizer={"device": "gpu"}), _zero(stage=2, offload_optimizer={"device": "none"})),
    ],
    # DeepSpeed: batch
    "DS201": [
        _ds({TOTAL: 128, MICRO: 4, STEPS: 8}, {TOTAL: 256, MICRO: 4, STEPS: 8}, world_size=8),
        _ds({TOTAL: 250, MICRO: 4, STEPS: 8}, {TOTAL: 256, MICRO: 4, STEPS: 8}),
    ],
    "DS202": [_ds({MICRO: DELETE})],
    "DS203": [
        _ds({TOTAL: 4, MICRO: DELETE, STEPS: DELETE}, {TOTAL: 8, MICRO: DELETE, STEPS: DELETE}, world_size=8),
        _ds({TOTAL: 20, MICRO: 1, STEPS: DELETE}, {TOTAL: 24, MICRO: 1, STEPS: DELETE}, world_size=8),
        _ds({TOTAL: 6, MICRO: 4, STEPS: DELETE}, {TOTAL: 8, MICRO: 4, STEPS: DELETE}),
    ],
    "DS211": [_ds({MICRO: "auto"}, {}, "elsewhere")],
    "DS212": [
        _ds(
            _zero(stage=2, allgather_bucket_size="auto"),
            _zero(stage=2, reduce_bucket_size="auto"),
            "accepts",
            loader="transformers",
        )
    ],
    "DS213": [
        _ds({TOTAL: "auto"}, {}, loader="none"),
        _ds({STEPS: "auto"}, {}, loader="none"),
        _ds({"bf16": {"enabled": "auto"}}, {"bf16": {"enabled": True}}, "accepts", loader="none"),
    ],
    # DeepSpeed: precision
    "DS301": [_ds({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, {"bf16": {"enabled": True}})],
    "DS302": [
        _ds({"fp16": {"enabled": True, "loss_scale": -1}}, {"fp16": {"enabled": True, "loss_scale": 0}}),
        _ds({"fp16": {"enabled": True, "loss_scale": True}}, {"fp16": {"enabled": True, "loss_scale": 128}}),
        _ds({"fp16": {"enabled": True, "loss_scale_window": 0}}, {"fp16": {"enabled": True, "loss_scale_window": 500}}),
    ],
    "DS303": [
        _ds({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}),
        _ds(
            merged(_zero(stage=1), {"bf16": {"enabled": True, "bf16_optimizer_states": True}}),
            merged(
                _zero(stage=1),
                {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
            ),
        ),
    ],
    "DS304": [
        _ds(
            {"bf16": {"enabled": True}, "data_types": {"param_dtype": "fp16"}},
            {"bf16": {"enabled": True}, "data_types": {"param_dtype": "bf16"}},
            "engine",
        )
    ],
    "DS305": [
        _ds(
            {"bf16": {"enabled": True}, "fp16": {"enabled": False, "loss_scale": 128}},
            {"bf16": {"enabled": True}, "fp16": {"enabled": False}},
            "accepts",
        )
    ],
    # DeepSpeed: ZeRO
    "DS401": [_ds(_zero(stage=4), _zero(stage=3)), _ds(_zero(stage="two"), _zero(stage=2))],
    "DS402": [_ds(_zero(stage=2, offload_param=CPU), _zero(stage=3, offload_param=CPU), "accepts")],
    "DS403": [_ds(_zero(stage=0, offload_optimizer=CPU), _zero(stage=1, offload_optimizer=CPU), "accepts")],
    "DS404": [
        _ds(
            _zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
            _zero(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        )
    ],
    "DS405": [
        _ds(
            _zero(stage=2, offload_optimizer={"device": "cpu", "super_offload": True}),
            _zero(stage=3, offload_optimizer={"device": "cpu", "super_offload": True}),
            "accepts",
        )
    ],
    "DS406": [
        _ds(
            _zero(stage=3, offload_optimizer={"device": "nvme"}),
            _zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/scratch"}),
            "elsewhere",
        )
    ],
    "DS407": [
        _ds(_zero(stage=2, stage3_max_live_parameters=100), _zero(stage=3, stage3_max_live_parameters=100), "accepts"),
        _ds(_zero(stage=2, zero_hpz_partition_size=8), _zero(stage=3, zero_hpz_partition_size=8), "accepts"),
    ],
    "DS408": [
        _ds(_zero(stage=2, zenflow={}), _zero(stage=2, zenflow={}, offload_optimizer=CPU), "elsewhere"),
        _ds(
            _zero(stage=2, zenflow={"select_interval": 5}, offload_optimizer=CPU),
            _zero(stage=2, zenflow={"select_strategy": "step", "select_interval": 5}, offload_optimizer=CPU),
            "elsewhere",
        ),
    ],
    "DS409": [
        _ds(
            merged(_zero(stage=2), {"pipeline": {"stages": 2}}),
            merged(_zero(stage=1), {"pipeline": {"stages": 2}}),
            "elsewhere",
        )
    ],
    "DS410": [
        _ds(
            merged(_zero(stage=3, compute_grad_norm=False), {"gradient_clipping": 0.0}),
            merged(_zero(stage=2, compute_grad_norm=False), {"gradient_clipping": 0.0}),
        )
    ],
    "DS411": [_ds({"zero_optimization": True}, _zero(stage=1), "accepts")],
    "DS412": [_ds(_zero(stage=1, legacy_stage1=True), _zero(stage=1), "engine")],
    "DS413": [_ds(_zero(stage=2, cpu_offload=True, offload_optimizer=CPU), _zero(stage=2, offload_optimizer=CPU))],
    # DeepSpeed: the rest
    "DS501": [
        _ds({"optimizer": {"type": name, "params": {"torch_adam": DELETE}}}, {}, "engine")
        for name in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb", "AdmaW")
    ],
    "DS502": [
        _ds(
            merged(_zero(stage=1), {"optimizer": {"type": "SGD", "params": {"torch_adam": DELETE}}}),
            merged(
                _zero(stage=1),
                {"optimizer": {"type": "SGD", "params": {"torch_adam": DELETE}}, "zero_allow_untested_optimizer": True},
            ),
            "engine",
        )
    ],
    "DS503": [
        _ds(
            {"optimizer": DELETE, **_zero(stage=2, offload_optimizer=CPU)},
            {"optimizer": DELETE, **_zero(stage=2, offload_optimizer=CPU), "zero_force_ds_cpu_optimizer": False},
            "accepts",
        )
    ],
    "DS504": [
        _ds(
            {"scheduler": {"type": "Warmup", "params": {}}}, {"scheduler": {"type": "WarmupLR", "params": {}}}, "engine"
        )
    ],
    "DS505": [
        _ds(
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5}}},
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 5, "total_num_steps": 50}}},
            "engine",
        ),
        _ds(
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}},
            "engine",
        ),
        _ds({"scheduler": {"type": "WarmupLR"}}, {"scheduler": {"type": "WarmupLR", "params": {}}}, "engine"),
    ],
    "DS506": [_ds({"gradient_clipping": DELETE}, {}, "accepts")],
    "DS507": [
        _ds(
            merged(_zero(stage=3), {"gradient_allreduce_op": "sum"}),
            merged(_zero(stage=2), {"gradient_allreduce_op": "sum"}),
        )
    ],
    "DS508": [_ds({"activation_checkpointing": {"partition_activations": True}}, {}, "accepts")],
    "DS509": [
        _ds(
            merged(_zero(stage=1, overlap_comm=True), {"managed_gradient_accumulation": False}),
            merged(_zero(stage=1, overlap_comm=False), {"managed_gradient_accumulation": False}),
            "engine",
        )
    ],
    # Accelerate
    "ACC101": [_acc({"num_process": 4}), _acc({"deepspeed_hostfile": "hosts"})],
    "ACC102": [
        _acc(_fsdp(FSDP2, fsdp_reshard=True), FSDP2, "accepts"),
        _acc({"distributed_type": "DEEPSPEED", "deepspeed_config": {"stage": 3}}, {}, "accepts"),
    ],
    "ACC103": [_acc({"tp_config": {"tp_size": 2}}), _acc({"ipex_config": {"ipex": True}})],
    "ACC104": [_acc({"fp16": True, "mixed_precision": DELETE}, {"mixed_precision": "fp16"}, "accepts")],
    "ACC105": [
        _acc({"distributed_type": "MULTIGPU"}),
        _acc({"mixed_precision": "bf8"}),
        _acc({"distributed_type": False}, {"distributed_type": "NO"}, "accepts"),
    ],
    "ACC106": [_acc({"fsdp_config": {"fsdp_version": 2}}, FSDP2, "accepts")],
    "ACC201": [_acc({"distributed_type": DELETE})],
    "ACC202": [
        _acc(
            {"num_machines": 2, "num_processes": 10 + 1, "main_process_ip": "10.0.0.1"},
            {"num_machines": 2, "num_processes": 16, "main_process_ip": "10.0.0.1"},
            "elsewhere",
        )
    ],
    "ACC203": [_acc({"num_processes": 0}, {}, "elsewhere"), _acc({"num_processes": DELETE}, {}, "elsewhere")],
    "ACC204": [
        _acc(
            {"num_machines": 2, "machine_rank": 2, "main_process_ip": "10.0.0.1"},
            {"num_machines": 2, "machine_rank": 1, "main_process_ip": "10.0.0.1"},
            "elsewhere",
        )
    ],
    "ACC205": [
        _acc({"num_machines": 2}, {"num_machines": 2, "main_process_ip": "10.0.0.1"}, "elsewhere"),
        _acc(
            {"num_machines": 2, "main_process_ip": "127.0.0.1"},
            {"num_machines": 2, "main_process_ip": "10.0.0.1"},
            "elsewhere",
        ),
    ],
    "ACC206": [_acc({"num_processes": 4}, {"num_processes": 16}, "elsewhere", world_size=16)],
    "ACC207": [_acc({"gpu_ids": "0", "num_processes": 2}, {"gpu_ids": "0,1", "num_processes": 2})],
    "ACC301": [
        _acc(
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "d.json", "zero_stage": 2}},
            {
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"deepspeed_config_file": "d.json"},
                "mixed_precision": DELETE,
            },
            "elsewhere",
        )
    ],
    "ACC302": [
        _acc(
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2, "zero3_init_flag": True}},
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True}},
            "accepts",
        )
    ],
    "ACC303": [_acc(_fsdp(FSDP2, fsdp_use_orig_params=True), FSDP2, "accepts")],
    "ACC304": [
        _acc(_fsdp(FSDP2, fsdp_reshard_after_forward="FULL_SHARD"), FSDP2),
        _acc(
            _fsdp(FSDP2, fsdp_state_dict_type="LOCAL_STATE_DICT"),
            _fsdp(FSDP2, fsdp_state_dict_type="SHARDED_STATE_DICT"),
        ),
        _acc(_fsdp(FSDP2, fsdp_activation_checkpointing_offload=True), FSDP2),
        _acc(
            _fsdp(FSDP1, fsdp_cpu_ram_efficient_loading=True, fsdp_sync_module_states=False),
            _fsdp(FSDP1, fsdp_cpu_ram_efficient_loading=False, fsdp_sync_module_states=False),
        ),
    ],
    "ACC305": [_acc(_fsdp(FSDP1, fsdp_version=DELETE), FSDP1, "accepts")],
    "ACC306": [
        _acc(
            merged(FSDP2, {"parallelism_config": {"parallelism_config_dp_shard_size": 8}}),
            merged(FSDP2, {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}),
            "elsewhere",
        )
    ],
    "ACC307": [
        _acc(
            merged(FSDP1, {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}),
            merged(FSDP2, {"parallelism_config": {"parallelism_config_dp_shard_size": 4}}),
            "elsewhere",
        )
    ],
    # Lightning
    "PL101": [_pl({"max_epoch": 3}), _pl({"batch_size": 3})],
    "PL102": [
        _pl({key: 1})
        for key in (
            "gpus",
            "tpu_cores",
            "num_processes",
            "replace_sampler_ddp",
            "amp_backend",
            "amp_level",
            "resume_from_checkpoint",
            "auto_lr_find",
            "auto_scale_batch_size",
            "move_metrics_to_cpu",
            "track_grad_norm",
            "weights_summary",
            "checkpoint_callback",
            "stochastic_weight_avg",
        )
    ],
    "PL103": [
        _pl({key: True})
        for key in (
            "find_unused_parameters",
            "static_graph",
            "gradient_checkpointing",
            "gradient_compression",
            "sync_mode",
            "reduce_on_epoch_end",
            "accelerator_type",
        )
    ],
    "PL104": [
        _pl(
            {"strategy": {"class_path": "lightning.pytorch.strategies.FSDPStrategy", "init_args": {"shards": 1}}},
            {
                "strategy": {
                    "class_path": "lightning.pytorch.strategies.DDPStrategy",
                    "init_args": {"static_graph": True},
                }
            },
            "elsewhere",
        )
    ],
    "PL201": [
        _pl({"strategy": name}, {"strategy": "ddp"})
        for name in ("dp", "horovod", "bagua", "ddp_sharded", "fairscale", "colossalai", "dpp")
    ],
    "PL202": [_pl({"accelerator": "gpus"}, {"accelerator": "auto"})],
    "PL203": [
        _pl({"precision": "fp16"}, {"precision": "bf16-mixed"}),
        _pl({"precision": "mixed"}, {"precision": "64-true"}),
    ],
    "PL204": [_pl({"precision": "16-mixed"}, {"precision": "bf16-mixed"}, "accepts")],
    "PL205": [_pl({"strategy": "fsdp"}, {"strategy": "ddp"})],
    "PL206": [_pl({"precision": "bf16"}, {"precision": "bf16-mixed"}, "accepts")],
    "PL207": [
        _pl({"accumulate_grad_batches": {"5": 2}}, {"accumulate_grad_batches": 2}, "elsewhere"),
        _pl({"accumulate_grad_batches": 0}, {"accumulate_grad_batches": 1}, "elsewhere"),
    ],
    "PL208": [_pl({"gradient_clip_algorithm": "max"}, {"gradient_clip_algorithm": "value"})],
    "PL209": [_pl({"barebones": True, "enable_checkpointing": True}, {"barebones": True})],
    "PL210": [
        _pl(
            {"accelerator": "gpu", "strategy": "fsdp", "gradient_clip_val": 1.0},
            {"accelerator": "gpu", "strategy": "ddp", "gradient_clip_val": 1.0},
            "elsewhere",
        ),
        _pl(
            {"strategy": "deepspeed_stage_2", "gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"},
            {"strategy": "deepspeed_stage_2", "gradient_clip_val": 1.0, "gradient_clip_algorithm": "norm"},
            "elsewhere",
        ),
    ],
    "PL211": [_pl({"strategy": "single_device", "devices": 4}, {"strategy": "ddp", "devices": 4}, "elsewhere")],
    # Hugging Face
    "HF101": [_hf({"learning_rates": 1e-4}), _hf({"not_an_argument": 1}), _hf({"distributed_state": 1})],
    "HF102": [
        _hf({key: value})
        for key, value in {
            "evaluation_strategy": "steps",
            "no_cuda": True,
            "sharded_ddp": "simple",
            "half_precision_backend": "auto",
            "fp16_opt_level": "O1",
            "fsdp_transformer_layer_cls_to_wrap": "Block",
            "tpu_num_cores": 8,
            "use_ipex": True,
            "adafactor": True,
            "warmup_ratio": 0.1,
            "logging_dir": "logs",
            "group_by_length": True,
            "overwrite_output_dir": True,
            "save_safetensors": True,
            "per_gpu_train_batch_size": 4,
        }.items()
    ],
    "HF103": [_hf({"gradient_checkpointing": True}, {"activation_checkpointing": True}, "accepts")],
    "HF104": [
        _hf({"fsdp": True, "fsdp_config": {"nonsense": 1}}, {"fsdp": True, "fsdp_config": {"version": 2}}, "accepts")
    ],
    "HF105": [
        _hf({"optim": "adamw_hf"}, {"optim": "adamw_torch"}),
        _hf({"lr_scheduler_type": "cosin"}, {"lr_scheduler_type": "cosine"}),
        _hf({"eval_strategy": "step"}, {"eval_strategy": "no"}),
    ],
    "HF201": [_hf({"fp16": True, "bf16": True}, {"bf16": True})],
    "HF202": [_hf({"dataloader_prefetch_factor": 2}, {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 2})],
    "HF203": [
        _hf(
            {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "steps"},
            {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        )
    ],
    "HF204": [_hf({"gradient_accumulation_steps": 0}, {"gradient_accumulation_steps": 4}, "elsewhere")],
    "HF205": [_hf({"fsdp": True, "deepspeed": "ds.json"}, {"fsdp": True}, "elsewhere")],
    "HF206": [_hf({"fsdp": "full_shard"}, {"fsdp": True}, "accepts")],
    "HF207": [
        _hf(
            {"fsdp": True, "fsdp_config": {"use_orig_params": True}},
            {"fsdp": True, "fsdp_config": {"reshard_after_forward": True}},
            "accepts",
        )
    ],
    "HF208": [
        _hf(
            {"fsdp": True, "activation_checkpointing": True},
            {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}},
            "accepts",
        )
    ],
    "HF209": [
        _hf(
            {"deepspeed": {MICRO: 4, "gradient_clipping": "auto"}},
            {"deepspeed": {MICRO: "auto", "gradient_clipping": "auto"}},
            "elsewhere",
        ),
        _hf(
            {"deepspeed": {MICRO: 2, TOTAL: 100, "gradient_clipping": "auto"}},
            {"deepspeed": {MICRO: 2, TOTAL: 16, "gradient_clipping": "auto"}},
            "elsewhere",
            world_size=8,
        ),
    ],
    "HF210": [_hf({"logging_steps": 0}, {"logging_steps": 0, "logging_strategy": "no"})],
    "HF211": [_hf({"fsdp": "hybrid_shard"}, {"fsdp": True}), _hf({"fsdp": "fullshard"}, {"fsdp": True})],
    "HF212": [_hf({"fsdp_config": {"version": 2}}, {"fsdp": True, "fsdp_config": {"version": 2}}, "accepts")],
}
CASES = [
    (f"{code}-{index}", code, example) for code, examples in EXAMPLES.items() for index, example in enumerate(examples)
]
