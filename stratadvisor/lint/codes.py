"""Every code a check can give: stable, documented in docs/check.md, each with where the fact was read."""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor.lint.finding import Severity

_DS = "deepspeed 0.19.8"
_HF = "transformers 5.24.0"
_ACC = "accelerate 1.15.0"
_PL = "lightning 2.6.6"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of problem."""

    severity: Severity
    title: str
    source: str


CODES: dict[str, Code] = {
    # any file
    "GEN101": Code(
        "error", "a key stands twice: one of the values is lost", f"{_DS} runtime/config_utils.py; YAML 1.2"
    ),
    "GEN102": Code("error", "a number is written as text", "PyYAML reads 1e-5, without a dot, as text"),
    # DeepSpeed: keys
    "DS101": Code("warning", "top-level key that DeepSpeed does not read", f"{_DS} runtime/config.py"),
    "DS102": Code("error", "key that its section refuses", f"{_DS} runtime/config_utils.py: extra=forbid"),
    "DS103": Code("warning", "key that its section does not read", f"{_DS} runtime/config.py"),
    "DS111": Code("error", "removed key", "changes table"),
    "DS112": Code("warning", "key under an old name", "changes table"),
    "DS113": Code("warning", "key that never existed", "changes table"),
    "DS114": Code("error", "value of the wrong kind", f"{_DS} runtime/config.py"),
    "DS115": Code("error", "value that is not one of those allowed", f"{_DS} runtime/config.py"),
    # DeepSpeed: batch
    "DS201": Code(
        "error", "train_batch_size is not micro batch x accumulation x world size", f"{_DS} _batch_assertion"
    ),
    "DS202": Code("error", "no batch size at all", f"{_DS} _set_batch_related_parameters"),
    "DS203": Code("error", "batch that does not divide, or divides to zero", f"{_DS} _set_batch_related_parameters"),
    "DS211": Code(
        "note", '"auto" values: only Trainer, Accelerate or Lightning fill them', f"{_HF} integrations/deepspeed.py"
    ),
    "DS212": Code("warning", '"auto" where nothing fills it', f"{_HF} integrations/deepspeed.py"),
    "DS213": Code("error", '"auto" in a file for a plain deepspeed.initialize', f"{_DS} runtime/config_utils.py"),
    # DeepSpeed: precision
    "DS301": Code("error", "fp16 and bf16 both enabled", f"{_DS} runtime/config.py"),
    "DS302": Code("error", "loss scale that cannot work", f"{_DS} runtime/precision_config.py"),
    "DS303": Code("error", "16-bit master weights or states without what they need", f"{_DS} _do_error_check"),
    "DS304": Code("error", "data_types.param_dtype is at odds with fp16 or bf16", f"{_DS} runtime/engine.py"),
    "DS305": Code("warning", "loss scaling keys without fp16", f"{_DS} runtime/precision_config.py"),
    # DeepSpeed: ZeRO
    "DS401": Code("error", "ZeRO stage other than 0, 1, 2, 3", f"{_DS} runtime/zero/config.py"),
    "DS402": Code("warning", "offload_param without stage 3", f"{_DS} runtime/zero/config.py: valid only with stage 3"),
    "DS403": Code("warning", "offload_optimizer without ZeRO", f"{_DS} runtime/zero/config.py: stages 1, 2, 3"),
    "DS404": Code("error", "partial offload (ratio < 1) without stage 3", f"{_DS} offload_ratio_check"),
    "DS405": Code("warning", "super_offload without stage 3", f"{_DS} runtime/zero/offload_config.py"),
    "DS406": Code(
        "error", "NVMe offload without nvme_path or without stage 3", f"{_DS} runtime/zero/offload_config.py"
    ),
    "DS407": Code("warning", "stage 3 keys without stage 3", f"{_DS} runtime/zero/config.py"),
    "DS408": Code("error", "ZenFlow without ZeRO or optimizer offload", f"{_DS} runtime/zenflow/engine.py"),
    "DS409": Code(
        "error", "pipeline stages with ZeRO 2 or 3", "deepspeed pipe/engine.py; DeepSpeed issues 823, 1110, 4164"
    ),
    "DS410": Code("error", "compute_grad_norm: false where it is needed", f"{_DS} compute_grad_norm_valid"),
    "DS411": Code("warning", "zero_optimization: true, the form before stages", f"{_DS} read_zero_config_deprecated"),
    "DS412": Code("error", "legacy_stage1", f"{_DS} runtime/engine.py: raises"),
    "DS413": Code("error", "old and new offload keys together", f"{_DS} runtime/config_utils.py"),
    # DeepSpeed: optimizer, schedule, the rest
    "DS501": Code("error", "optimizer that DeepSpeed does not have", f"{_DS} _is_supported_optimizer"),
    "DS502": Code("error", "optimizer that ZeRO was not tested with", f"{_DS} _do_optimizer_sanity_check"),
    "DS503": Code("note", "offload with an optimizer of your own", f"{_DS} zero_force_ds_cpu_optimizer"),
    "DS504": Code("error", "schedule that neither DeepSpeed nor torch has", f"{_DS} _scheduler_from_config"),
    "DS505": Code("error", "schedule without a number that it needs", f"{_DS} runtime/lr_schedules.py"),
    "DS506": Code("note", "gradient_clipping is not given", "deepspeed 0.19.3: the default became 1.0"),
    "DS507": Code("error", "gradient_allreduce_op: sum where it is refused", f"{_DS} _do_error_check"),
    "DS508": Code(
        "warning", "activation_checkpointing does nothing by itself", f"{_DS} runtime/activation_checkpointing"
    ),
    "DS509": Code("error", "managed_gradient_accumulation: false where it is refused", f"{_DS} runtime/engine.py"),
    # Accelerate
    "ACC101": Code("error", "key that Accelerate refuses", f"{_ACC} commands/config/config_args.py"),
    "ACC102": Code("warning", "key of a section that nothing reads", f"{_ACC} commands/launch.py"),
    "ACC103": Code("error", "removed key", "changes table"),
    "ACC104": Code("warning", "key under an old name", "changes table"),
    "ACC105": Code("error", "value that is not one of those allowed", f"{_ACC} utils/dataclasses.py"),
    "ACC106": Code("warning", "section that the distributed_type does not use", f"{_ACC} commands/launch.py"),
    "ACC201": Code("error", "distributed_type is missing", f"{_ACC} commands/config/config_args.py"),
    "ACC202": Code(
        "error", "num_processes is not a multiple of num_machines", f"{_ACC} utils/launch.py divides and drops the rest"
    ),
    "ACC203": Code("error", "num_processes is missing or below 1", f"{_ACC} commands/launch.py"),
    "ACC204": Code("error", "machine_rank outside num_machines", f"{_ACC} utils/launch.py"),
    "ACC205": Code("error", "several machines without a main_process_ip they can reach", f"{_ACC} utils/launch.py"),
    "ACC206": Code(
        "warning",
        "num_processes or num_machines is not what the cluster has",
        f"{_ACC} num_processes counts all machines",
    ),
    "ACC207": Code("error", "fewer GPU ids than processes on a machine", f"{_ACC} commands/launch.py"),
    "ACC301": Code("error", "DeepSpeed keys beside deepspeed_config_file", f"{_ACC} _deepspeed_config_checks"),
    "ACC302": Code("warning", "ZeRO-3 keys with another stage", f"{_ACC} utils/dataclasses.py"),
    "ACC303": Code("warning", "FSDP1 keys with fsdp_version 2", f"{_ACC} utils/dataclasses.py"),
    "ACC304": Code("error", "FSDP keys that contradict fsdp_version", f"{_ACC} utils/dataclasses.py"),
    "ACC305": Code("note", "fsdp_version is not given: FSDP1", f"{_ACC} utils/dataclasses.py"),
    "ACC306": Code("error", "parallelism sizes do not multiply to num_processes", f"{_ACC} parallelism_config.py"),
    "ACC307": Code("error", "parallelism_config without FSDP2", f"{_ACC} commands/launch.py"),
    # Lightning
    "PL101": Code("error", "argument that Trainer does not have", f"{_PL} Trainer.__init__"),
    "PL102": Code("error", "removed or renamed argument", "changes table"),
    "PL103": Code("error", "argument that never existed", "changes table"),
    "PL104": Code("error", "argument that the strategy does not have", f"{_PL} strategies"),
    "PL201": Code("error", "strategy that is not registered", f"{_PL} accelerator_connector.py"),
    "PL202": Code("error", "accelerator that does not exist", f"{_PL} accelerator_connector.py"),
    "PL203": Code("error", "precision that does not exist", f"{_PL} plugins/precision"),
    "PL204": Code("warning", "16-mixed on a CPU becomes bf16-mixed", f"{_PL} accelerator_connector.py"),
    "PL205": Code("error", "FSDP without a GPU accelerator", f"{_PL} accelerator_connector.py"),
    "PL206": Code("warning", "precision in its short form", f"{_PL} plugins/precision: 16 means 16-mixed"),
    "PL207": Code("error", "accumulate_grad_batches is not a whole number from 1", f"{_PL} trainer.py; PR 16729"),
    "PL208": Code("error", "gradient_clip_algorithm is neither norm nor value", f"{_PL} trainer.py"),
    "PL209": Code("error", "arguments that barebones forbids", f"{_PL} trainer.py"),
    "PL210": Code(
        "error",
        "gradient clipping that the strategy refuses",
        f"{_PL} strategies/deepspeed.py, plugins/precision/fsdp.py",
    ),
    "PL211": Code("error", "several devices with a strategy for one", f"{_PL} strategies/single_device.py"),
    # Hugging Face TrainingArguments
    "HF101": Code("error", "argument that TrainingArguments does not have", f"{_HF} training_args.py, hf_argparser.py"),
    "HF102": Code("error", "removed or renamed argument", "changes table"),
    "HF103": Code("warning", "deprecated argument", "changes table"),
    "HF104": Code("warning", "key of a section that nothing reads", f"{_HF} training_args.py"),
    "HF105": Code("error", "value that is not one of those allowed", f"{_HF} training_args.py"),
    "HF201": Code("error", "fp16 and bf16 both true", f"{_HF} _validate_args"),
    "HF202": Code("error", "prefetch factor without workers", f"{_HF} _validate_args"),
    "HF203": Code("error", "load_best_model_at_end with eval and save strategies that differ", f"{_HF} _validate_args"),
    "HF204": Code("error", "batch or accumulation below 1", f"{_HF}: the Trainer divides by it"),
    "HF205": Code("error", "fsdp and deepspeed together", f"{_HF} trainer.py: one engine wraps the model"),
    "HF206": Code("warning", "fsdp as a text", f"{_HF} _apply_legacy_fsdp_to_config"),
    "HF207": Code("warning", "FSDP1 keys with FSDP2", f"{_HF} _process_fsdp_args"),
    "HF208": Code(
        "warning", "activation_checkpointing of the Trainer under FSDP", f"{_HF} _process_fsdp_args; issue 30404"
    ),
    "HF209": Code("error", "deepspeed file and arguments that differ", f"{_HF} integrations/deepspeed.py"),
    "HF210": Code("error", "steps of zero where a strategy counts steps", f"{_HF} _validate_args"),
    "HF211": Code("error", "fsdp option that FSDP2 does not have", f"{_HF} _apply_legacy_fsdp_to_config"),
    "HF212": Code("warning", "fsdp_config without fsdp", f"{_HF} _process_fsdp_args returns at once"),
    # hardware
    "HW101": Code(
        "warning", "bf16 on devices without it", "device catalog; torch emulates it, at a fraction of the rate"
    ),
    "HW102": Code("error", "fp16 on devices that DeepSpeed refuses it on", f"{_DS} accelerator/cuda_accelerator.py"),
    "HW103": Code("error", "tf32 on devices without it", f"{_HF} utils/import_utils.py"),
    "HW104": Code("warning", "ZeRO buckets that fill much of a device", "DeepSpeed issues 2992, 467"),
    # memory
    "MEM101": Code("error", "does not fit on the cluster", "the cost model, docs/architecture.md"),
    "MEM102": Code("warning", "fits at most barely", "the cost model, docs/architecture.md"),
    "MEM103": Code("note", "fits", "the cost model, docs/architecture.md"),
    "MEM104": Code("note", "the memory cannot be said", "the cost model, docs/architecture.md"),
}
