"""``train_config.json``: everything a training program of a bundle needs to know, checked before anything starts."""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Scalar = str | int | float | bool
EngineName = Literal[
    "single",
    "ddp",
    "fsdp2",
    "hsdp",
    "tp_fsdp2",
    "hierarchical",
    "deepspeed",
    "diloco",
    "diloco_nodes",
    "async_sgd",
    "adaptive",
]
LOCKSTEP_ENGINES = ("fsdp2", "hsdp", "tp_fsdp2", "deepspeed")
"""Their collectives run in every micro-batch, so every rank must do the same number of micro-batches."""


class TrainingError(Exception):
    """A problem the user can solve; shown as one sentence, without a traceback."""


class LostError(TrainingError):
    """Another process ended or cannot be reached."""


class ConfigError(TrainingError):
    """``train_config.json`` is missing, unreadable or contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The fields of ``ModelShape`` (stratadvisor.schema.workload), same names and meanings."""

    name: str = ""
    source: str = ""
    family: Literal["decoder", "encoder", "module"] = "decoder"
    num_parameters: int = 1
    num_active_parameters: int = 1
    num_layers: int = 0
    hidden_size: int = 0
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    ffn_hidden_size: int = 0
    gated_mlp: bool = True
    vocab_size: int = 0
    task_outputs: int = 0
    tied_embeddings: bool = False
    max_sequence_length: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    num_shared_experts: int = 0
    num_dense_layers: int = 0
    dense_ffn_hidden_size: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    learned_positions: bool = False
    norm_bias: bool = False
    fp16_overflows: bool = False
    num_vision_parameters: int = 0
    flops_per_item: float | None = None
    saved_bytes_per_item: float | None = None
    factory: str = ""


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """Alike nodes and the share of each of their devices."""

    node_class: str = ""
    num_nodes: int = 1
    devices_per_node: int = 1
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    batch_per_device: int = 1
    """Sequences per optimizer step on one device."""
    hostnames: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What ``train.py`` does; keys left out of the file take the value shown here."""

    strategy: str
    engine: EngineName
    model: ModelConfig
    groups: tuple[GroupConfig, ...]
    method: Literal["full", "lora", "qlora"] = "full"
    lora_rank: int = 16
    sequence_length: int = 2048
    precision: Literal["fp32", "bf16", "fp16", "bf16_pure"] = "fp32"
    optimizer: Literal["adamw", "adamw8bit", "adafactor", "sgd", "muon"] = "adamw"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    global_batch_size: int = 0
    """Sequences per optimizer step over all devices; 0: the sum of the groups' shares, else checked against it."""
    shard_degree: int = 1
    replicate_degree: int = 1
    tensor_parallel_degree: int = 1
    """Neighbouring ranks that share every layer and take the same samples (engine tp_fsdp2)."""
    optimizer_offload: Literal["none", "cpu", "nvme"] = "none"
    parameter_offload: Literal["none", "cpu", "nvme"] = "none"
    mode: Literal["synchronous", "hierarchical", "local_sgd", "asynchronous"] = "synchronous"
    sync_interval_steps: int = 1
    max_staleness_steps: int = 0
    compression: Literal["none", "bf16", "fp16", "int8", "sign", "powersgd"] = "none"
    settings: dict[str, Scalar] = field(default_factory=dict)
    """Strategy-specific, all optional: outer_learning_rate, outer_momentum (diloco, and async_sgd with local steps,
    which also has outer_momentum_every, dynamic_local_steps); torchft, exchange_seconds (diloco); staleness_bound (else
    max_staleness_steps), delay_compensation, delay_compensation_adaptive, sync_finish_fraction (async_sgd);
    sync_warmup_fraction (those and hierarchical: share of the run in lockstep first); ranks_per_node (to treat one
    machine as several); momentum (sgd); deepspeed_config (file name),
    shared_memory_collectives (DeepSpeed on CPUs: compile them at first use); reshard (FSDP2: free layers after the
    forward pass); timeout_seconds (how long a rank waits for another)."""
    data_loader_workers: int = 0
    compile_model: bool = False
    backend: Literal["nccl", "gloo"] = "gloo"
    device_kind: str = "cpu"
    learning_rate: float = 3e-4
    warmup_steps: int = 0
    weight_decay: float = 0.1
    gradient_clip_norm: float = 1.0
    """Largest norm of the global gradient; 0 for none."""
    seed: int = 0
    checkpoint_interval_steps: int = 0
    """0: only at the end and on SIGTERM."""
    total_steps: int = 0
    """Length of the cosine schedule; 0: constant after the warm-up."""
    directory: Path = Path()
    """Where the file lies; set by ``load``."""

    @property
    def world_size(self) -> int:
        """Devices that the plan uses."""
        return sum(group.num_nodes * group.devices_per_node for group in self.groups)

    def group_of_rank(self, rank: int) -> GroupConfig:
        """Return the group of a rank, nodes taken in the order of the groups; ranks beyond them join the last."""
        end = 0
        for group in self.groups:
            end += group.num_nodes * group.devices_per_node
            if rank < end:
                return group
        return self.groups[-1]


def load(path: Path) -> TrainConfig:
    """Return the checked configuration in a JSON file.

    Raises:
        ConfigError: one sentence with the file, the key and what it must be.

    """
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except json.JSONDecodeError as problem:
        raise ConfigError(f"{path} is not JSON: line {problem.lineno}: {problem.msg}") from None
    except (OSError, ValueError, RecursionError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from None
    try:
        return parse(data, path.resolve().parent)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def parse(data: object, directory: Path = Path()) -> TrainConfig:
    """Return the checked configuration of a JSON object (see ``load``)."""
    config: TrainConfig = _build(TrainConfig, data, "the document", directory=directory)
    _check(config)
    return config


def _build(kind: type[Any], data: object, place: str, **given: object) -> Any:
    """Return dataclass ``kind`` from a JSON object, every value checked against the field's type."""
    if not isinstance(data, dict):
        raise ConfigError(f"{place} must be an object, not {_describe(data)}")
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind) if f.name not in given}
    for key in data:
        if key not in known:
            raise ConfigError(f"{place} has the unknown key {key!r}")
    for name, spec in known.items():
        if name not in data and spec.default is MISSING and spec.default_factory is MISSING:
            raise ConfigError(f"{place} lacks the key {name!r}")
    prefix = "" if kind is TrainConfig else f"{place}."
    return kind(**{key: _value(hints[key], value, prefix + key) for key, value in data.items()}, **given)


def _value(hint: Any, value: object, place: str) -> Any:
    """Return ``value`` as the type ``hint``, or say what it must be."""
    if hint in (ModelConfig, GroupConfig):
        return _build(hint, value, place)
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ConfigError(f"{place} must be one of {', '.join(typing.get_args(hint))}, not {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{place} must be a list, not {_describe(value)}")
        return tuple(_value(typing.get_args(hint)[0], item, f"{place}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict) or any(isinstance(v, (dict, list)) or v is None for v in value.values()):
            raise ConfigError(f"{place} must be an object of plain values, not {_describe(value)}")
        return value
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(typing.get_args(hint)[0], value, place)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{place} must be {_NAMES[hint]}, not {_describe(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place} must be a finite number")
    return value


_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _describe(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if isinstance(value, str):
        return repr(value[:40])
    return "a list" if isinstance(value, list) else "an object"


def _check(config: TrainConfig) -> None:
    """Prove what types cannot say."""
    if not config.groups:
        raise ConfigError("groups must name at least one group of nodes")
    degrees = ("shard_degree", "replicate_degree", "tensor_parallel_degree")
    for key in ("sequence_length", "lora_rank", *degrees, "sync_interval_steps"):
        if getattr(config, key) < 1:
            raise ConfigError(f"{key} must be at least 1, not {getattr(config, key)}")
    for key in (
        "global_batch_size",
        "max_staleness_steps",
        "data_loader_workers",
        "warmup_steps",
        "weight_decay",
        "gradient_clip_norm",
        "checkpoint_interval_steps",
        "total_steps",
        "seed",
    ):
        if getattr(config, key) < 0:
            raise ConfigError(f"{key} must not be negative, it is {getattr(config, key)}")
    if config.learning_rate <= 0:
        raise ConfigError(f"learning_rate must be positive, not {config.learning_rate:g}")
    for index, group in enumerate(config.groups):
        _check_group(group, f"groups[{index}]")
    _check_tensor_parallel(config)
    shares = sum(g.num_nodes * g.devices_per_node * g.batch_per_device for g in config.groups)
    shares //= config.tensor_parallel_degree
    if config.global_batch_size not in (0, shares):
        raise ConfigError(
            f"global_batch_size is {config.global_batch_size}, but the shares of the groups sum to {shares}"
        )
    counts = sorted({g.gradient_accumulation_steps for g in config.groups})
    if config.engine in LOCKSTEP_ENGINES and len(counts) > 1:
        raise ConfigError(
            f"engine {config.engine} needs the same gradient_accumulation_steps in every group, not {counts}:"
            " its collectives run in every micro-batch"
        )


def _check_tensor_parallel(config: TrainConfig) -> None:
    degree = config.tensor_parallel_degree
    if degree == 1:
        return
    if config.engine != "tp_fsdp2":
        raise ConfigError(f"tensor_parallel_degree {degree} needs the engine tp_fsdp2, not {config.engine}")
    for index, group in enumerate(config.groups):
        if group.devices_per_node % degree:
            raise ConfigError(
                f"groups[{index}].devices_per_node ({group.devices_per_node}) must be a multiple of"
                f" tensor_parallel_degree ({degree}), so that ranks which share a layer share a node"
            )


def _check_group(group: GroupConfig, place: str) -> None:
    for key in ("num_nodes", "devices_per_node", "micro_batch_size", "gradient_accumulation_steps", "batch_per_device"):
        if getattr(group, key) < 1:
            raise ConfigError(f"{place}.{key} must be at least 1, not {getattr(group, key)}")
    if not (
        group.gradient_accumulation_steps
        <= group.batch_per_device
        <= group.micro_batch_size * group.gradient_accumulation_steps
    ):
        raise ConfigError(
            f"{place}: {group.batch_per_device} sequences cannot be split into {group.gradient_accumulation_steps}"
            f" micro-batches of 1 to {group.micro_batch_size}"
        )
