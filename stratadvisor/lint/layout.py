"""What a configuration makes every rank hold, as far as the file says it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stratadvisor.lint.finding import Kind
from stratadvisor.lint.lightning_rules import trainer_path
from stratadvisor.lint.subject import whole
from stratadvisor.schema.layout import Checkpointing, Engine, MixedPrecision, Offload, Sharding
from stratadvisor.schema.workload import Optimizer

SHARDING: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The part of a layout that a configuration decides; None where the file does not say."""

    engine: Engine = "ddp"
    sharding: Sharding = "none"
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int = 1
    precision: MixedPrecision | None = None
    optimizer: Optimizer | None = None
    activation_checkpointing: Checkpointing | None = None
    optimizer_offload: Offload = "none"
    parameter_offload: Offload = "none"
    inside_nodes: bool = False
    """Divided inside a node only, replicated across nodes (HSDP)."""
    elsewhere: str = ""
    """Another file that decides, where this one only names it."""


def setting_of(kind: Kind, data: dict[Any, Any], world_size: int) -> Setting:
    """Return what a configuration of one kind sets."""
    if kind == "deepspeed":
        return _deepspeed(data, world_size)
    if kind == "accelerate":
        return _accelerate(data)
    if kind == "lightning":
        return _lightning(data, world_size)
    return _transformers(data, world_size)


def _section(data: dict[Any, Any], *path: str) -> dict[Any, Any]:
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _offload(section: dict[Any, Any]) -> Offload:
    device = section.get("device")
    return "cpu" if device == "cpu" else "nvme" if device == "nvme" else "none"


def _zero_offload(zero: dict[Any, Any], name: str, old: str) -> Offload:
    return "cpu" if zero.get(old) is True else _offload(_section(zero, name))


def _deepspeed(data: dict[Any, Any], world_size: int) -> Setting:
    zero = _section(data, "zero_optimization")
    stage = whole(zero.get("stage", 0)) or 0
    if data.get("zero_optimization") is True:
        stage = 1
    steps = whole(data.get("gradient_accumulation_steps"))
    micro = whole(data.get("train_micro_batch_size_per_gpu"))
    total = whole(data.get("train_batch_size"))
    if total is not None and micro is None:
        micro = total // (world_size * (steps or 1)) or None
    if total is not None and steps is None and micro:
        steps = total // (world_size * micro) or None
    precision: MixedPrecision | None = "fp32"
    bf16 = _section(data, "bf16") or _section(data, "bfloat16")
    if bf16.get("enabled") is True:
        precision = "bf16_pure" if bf16.get("bf16_optimizer_states") is True else "bf16"
    elif _section(data, "fp16").get("enabled") is True:
        precision = "fp16"
    elif "auto" in (bf16.get("enabled"), _section(data, "fp16").get("enabled")):
        precision = None
    return Setting(
        engine="deepspeed",
        sharding=SHARDING[stage] if 0 <= stage <= 3 else "none",
        micro_batch_size=micro,
        gradient_accumulation_steps=steps or 1,
        precision=precision,
        optimizer=_optimizer(str(_section(data, "optimizer").get("type", ""))),
        optimizer_offload=_zero_offload(zero, "offload_optimizer", "cpu_offload") if stage else "none",
        parameter_offload=_zero_offload(zero, "offload_param", "cpu_offload_param") if stage == 3 else "none",
    )


def _optimizer(name: str) -> Optimizer | None:
    name = name.lower()
    if "8bit" in name and "adam" in name:
        return "adamw8bit"
    if name.startswith(("adamw", "adam")):
        return "adamw"
    return {"sgd": "sgd", "muon": "muon", "adafactor": "adafactor"}.get(name)  # type: ignore[return-value]


def _mixed(text: object) -> MixedPrecision | None:
    name = str(text).lower()
    if name in ("bf16", "bf16-mixed"):
        return "bf16"
    if name in ("fp16", "16", "16-mixed"):
        return "fp16"
    if name == "bf16-true":
        return "bf16_pure"
    return "fp32" if name in ("no", "false", "none", "32", "32-true", "fp32") else None


def _accelerate(data: dict[Any, Any]) -> Setting:
    kind = str(data.get("distributed_type", "")).upper()
    precision = _mixed(data.get("mixed_precision"))
    if kind == "DEEPSPEED":
        section = _section(data, "deepspeed_config")
        file = section.get("deepspeed_config_file")
        if file not in (None, "none"):
            return Setting(engine="deepspeed", elsewhere=str(file))
        stage = whole(section.get("zero_stage", 2)) or 0
        return Setting(
            engine="deepspeed",
            sharding=SHARDING[stage] if 0 <= stage <= 3 else "none",
            gradient_accumulation_steps=whole(section.get("gradient_accumulation_steps")) or 1,
            precision=precision,
            optimizer_offload=_offload({"device": section.get("offload_optimizer_device")}),
            parameter_offload=_offload({"device": section.get("offload_param_device")}) if stage == 3 else "none",
        )
    if kind == "FSDP":
        section = {str(k).removeprefix("fsdp_"): v for k, v in _section(data, "fsdp_config").items()}
        return replace(_fsdp(section), precision=precision)
    return Setting(engine="torch" if kind in ("NO", "FALSE") else "ddp", precision=precision)


def _fsdp(section: dict[str, Any]) -> Setting:
    how = str(section.get("sharding_strategy", section.get("reshard_after_forward", True))).upper()
    sharding: Sharding = "gradients" if how in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2", "FALSE", "2") else "parameters"
    offload: Offload = "cpu" if section.get("offload_params", section.get("cpu_offload")) in (True, "true") else "none"
    checkpointing = section.get("activation_checkpointing")
    return Setting(
        engine="fsdp2",
        sharding="none" if how in ("NO_SHARD", "3") else sharding,
        optimizer_offload=offload,
        parameter_offload=offload,
        activation_checkpointing=None if checkpointing is None else "full" if checkpointing is True else "none",
        inside_nodes=how.startswith("HYBRID"),
    )


def _lightning(data: dict[Any, Any], world_size: int) -> Setting:
    part = _section(data, *trainer_path(data)) if trainer_path(data) else data
    strategy = part.get("strategy", "auto")
    precision = _mixed(part.get("precision", "32-true"))
    steps = whole(part.get("accumulate_grad_batches")) or 1
    arguments = _section(part, "strategy", "init_args")
    name = str(strategy.get("class_path", "") if isinstance(strategy, dict) else strategy).lower()
    if isinstance(arguments.get("config"), dict) and "deepspeed" in name:
        return replace(
            _deepspeed(arguments["config"], world_size), precision=precision, gradient_accumulation_steps=steps
        )
    common = Setting(precision=precision, gradient_accumulation_steps=steps)
    if "deepspeed" in name:
        digits = [int(c) for c in name if c.isdigit()]
        stage = whole(arguments.get("stage")) or (digits[0] if digits else 2)
        device: Offload = "nvme" if "nvme" in name else "cpu" if "offload" in name else "none"
        if arguments.get("offload_optimizer") is True:
            device = "cpu"
        return replace(
            common,
            engine="deepspeed",
            sharding=SHARDING[stage] if 0 <= stage <= 3 else "none",
            optimizer_offload=device,
            parameter_offload=device if stage == 3 and "offload" in name else "none",
        )
    if "fsdp" in name:
        offload: Offload = "cpu" if "offload" in name or arguments.get("cpu_offload") is True else "none"
        how = str(arguments.get("sharding_strategy", "FULL_SHARD")).upper()
        return replace(
            common,
            engine="fsdp2",
            sharding="gradients" if how == "SHARD_GRAD_OP" else "parameters",
            optimizer_offload=offload,
            parameter_offload=offload,
            inside_nodes=how.startswith("HYBRID"),
        )
    return replace(common, engine="torch" if name == "single_device" else "ddp")


def _transformers(data: dict[Any, Any], world_size: int) -> Setting:
    precision: MixedPrecision = "bf16" if data.get("bf16") is True else "fp16" if data.get("fp16") is True else "fp32"
    checkpointing = data.get("activation_checkpointing", data.get("gradient_checkpointing"))
    common = Setting()
    deepspeed = data.get("deepspeed")
    if isinstance(deepspeed, dict):
        common = _deepspeed(deepspeed, world_size)
    elif isinstance(deepspeed, str):
        common = Setting(engine="deepspeed", elsewhere=deepspeed)
    elif data.get("fsdp"):
        section = {str(k).removeprefix("fsdp_"): v for k, v in _section(data, "fsdp_config").items()}
        words = data["fsdp"].split() if isinstance(data["fsdp"], str) else []
        if "shard_grad_op" in words:
            section.setdefault("sharding_strategy", "SHARD_GRAD_OP")
        if "offload" in words:
            section.setdefault("cpu_offload", True)
        common = _fsdp(section)
    steps = whole(data.get("gradient_accumulation_steps")) or 1
    given: Checkpointing = "full" if checkpointing is True else "none"
    return replace(
        common,
        micro_batch_size=whole(data.get("per_device_train_batch_size", 8)),
        gradient_accumulation_steps=steps,
        precision=precision,
        optimizer=_optimizer(str(data.get("optim", "adamw_torch"))),
        activation_checkpointing="full" if common.activation_checkpointing == "full" else given,
    )
