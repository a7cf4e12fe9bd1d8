"""The content of ``train_config.json``: the plan in the words of the training program, with starting values."""

from __future__ import annotations

import math

from stratadvisor.errors import EmitError
from stratadvisor.schema.plan import Plan

ENGINES = {
    "single": "single",
    "ddp": "ddp",
    "uneven_ddp": "ddp",
    "hierarchical": "hierarchical",
    "fsdp2": "fsdp2",
    "hsdp": "hsdp",
    "tp_fsdp2": "tp_fsdp2",
    "zero1": "deepspeed",
    "zero2": "deepspeed",
    "zero3": "deepspeed",
    "zero_offload": "deepspeed",
    "diloco": "diloco",
    "federated": "diloco",
    "megatron_3d": "megatron",
    "async_sgd": "async_sgd",
}
"""Strategy -> engine of the training program (runtime/config.py names the engines)."""

NODE_ENGINES = {"diloco": "diloco_nodes"}
"""Engine of the training program -> the one whose replicas are whole nodes."""
ADAPTIVE_ENGINE = "adaptive"
ADAPTIVE_STRATEGIES = ("ddp", "uneven_ddp", "diloco")
"""What the adaptive engine can begin as, and change into."""
_ADAPTIVE_COMPRESSIONS = ("none", "bf16", "fp16")
_NOT_ADAPTIVE = ("fragments", "delay_steps", "sync_warmup_fraction")
"""Settings of DiLoCo on when replicas meet: the adaptive engine decides that itself."""

_LEARNING_RATES = (
    (60e6, 1e-3),
    (125e6, 6e-4),
    (350e6, 3e-4),
    (760e6, 2.5e-4),
    (1.3e9, 2e-4),
    (2.7e9, 1.6e-4),
    (6.7e9, 1.2e-4),
    (13e9, 1e-4),
    (math.inf, 0.6e-4),
)
"""Parameters up to -> peak learning rate of Adam: table 2.1 of arXiv:2005.14165; the first as nanoGPT."""
_CHECKPOINT_SECONDS = 1800.0


def learning_rate(plan: Plan) -> float:
    """Return a starting value by method, optimizer and size; plan.settings["learning_rate"] wins over it."""
    given = plan.settings.get("learning_rate")
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    size = plan.workload.model.num_parameters
    if plan.workload.method != "full":
        return 2e-4 if size <= 14e9 else 1e-4  # arXiv:2305.14314, table 9
    rate = next(rate for limit, rate in _LEARNING_RATES if size <= limit * 1.15)
    if plan.workload.optimizer == "sgd":
        return 0.05
    return rate


def warmup_steps(plan: Plan) -> int:
    """Return a quarter of a percent of the run, 10 to 2000 steps (GPT-3 took 0.13 %, nanoGPT 0.33 %)."""
    return min(2000, max(10, plan.predicted.run_steps // 400))


def checkpoint_interval_steps(plan: Plan) -> int:
    """Return the steps of about half an hour, at most the whole run."""
    steps = round(_CHECKPOINT_SECONDS / max(plan.predicted.step_seconds.likely, 1e-6))
    return min(max(1, steps), plan.predicted.run_steps)


def refuses_adaptive(plan: Plan) -> str:
    """Return why a plan cannot be adaptive, or nothing."""
    if plan.strategy not in ADAPTIVE_STRATEGIES:
        return f"adaptive training is for {', '.join(ADAPTIVE_STRATEGIES)}, the plan is {plan.strategy[:60]}"
    if plan.strategy == "diloco" and plan.parallelism.data_parallel_shard_degree > 1:
        return "adaptive training lets every device be a replica, and the plan's replicas are nodes"
    if plan.workload.optimizer == "adamw8bit":
        return "adaptive training averages states of optimizers, which adamw8bit quantizes: use adamw"
    if plan.synchronization.compression not in _ADAPTIVE_COMPRESSIONS:
        return f"adaptive training takes no compression {plan.synchronization.compression}"
    return ""


def train_config(plan: Plan) -> dict[str, object]:
    """Return the document that ``runtime.config.load`` reads.

    Raises:
        EmitError: no training program knows the plan's strategy, or it cannot be adaptive as the plan says.

    """
    engine = ENGINES.get(plan.strategy)
    if engine is None:
        raise EmitError(f"no training program knows the strategy {plan.strategy[:60]!r}")
    if plan.parallelism.data_parallel_shard_degree > 1:
        engine = NODE_ENGINES.get(engine, engine)
    settings = dict(plan.settings)
    if plan.adaptive:
        if reason := refuses_adaptive(plan):
            raise EmitError(reason)
        engine = ADAPTIVE_ENGINE
        settings = {key: value for key, value in settings.items() if key not in _NOT_ADAPTIVE}
    workload, memory, synchronization = plan.workload, plan.memory, plan.synchronization
    tensor = plan.parallelism.tensor_parallel_degree
    return {
        "strategy": plan.strategy,
        "engine": engine,
        "model": workload.model.model_dump(mode="json"),
        "groups": [
            {
                "node_class": group.node_class,
                "num_nodes": group.num_nodes,
                "devices_per_node": group.devices_per_node,
                "micro_batch_size": group.micro_batch_size,
                "gradient_accumulation_steps": group.gradient_accumulation_steps,
                "batch_per_device": group.batch_per_device,
                "hostnames": list(group.hostnames),
            }
            for group in plan.groups
        ],
        "method": workload.method,
        "lora_rank": workload.lora_rank,
        "sequence_length": plan.batch.sequence_length,
        "precision": plan.precision,
        "optimizer": workload.optimizer,
        "activation_checkpointing": memory.activation_checkpointing,
        "global_batch_size": plan.batch.global_batch_size,
        "shard_degree": plan.parallelism.data_parallel_shard_degree,
        "replicate_degree": plan.parallelism.data_parallel_replicate_degree,
        **({"tensor_parallel_degree": tensor} if tensor > 1 else {}),
        "optimizer_offload": memory.optimizer_offload,
        "parameter_offload": memory.parameter_offload,
        "mode": synchronization.mode,
        "sync_interval_steps": synchronization.sync_interval_steps,
        "max_staleness_steps": synchronization.max_staleness_steps,
        "compression": synchronization.compression,
        "settings": settings,
        "data_loader_workers": plan.data_loader_workers,
        "compile_model": plan.compile_model,
        "backend": plan.backend,
        "device_kind": plan.device_kind,
        "learning_rate": learning_rate(plan),
        "warmup_steps": warmup_steps(plan),
        "weight_decay": 0.1 if workload.method == "full" else 0.0,
        "gradient_clip_norm": 1.0,
        "seed": 0,
        "checkpoint_interval_steps": checkpoint_interval_steps(plan),
        "total_steps": plan.predicted.run_steps,
    }
