"""Whether a model fits under a configuration on a cluster: the same cost model that plans are made with."""

from __future__ import annotations

from dataclasses import replace

from stratadvisor.costs.memory import estimate
from stratadvisor.lint.finding import Kind
from stratadvisor.lint.layout import Setting, setting_of
from stratadvisor.lint.subject import Subject, whole
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.workload import ModelShape
from stratadvisor.strategies.fit import shortage
from stratadvisor.units import format_bytes

MAX_BATCH = 1_000_000


def check_memory(
    subject: Subject,
    kind: Kind,
    shape: ModelShape,
    cluster: Cluster,
    *,
    sequence_length: int,
    checkpointing: bool | None,
) -> None:
    """Report what each class of nodes needs and has."""
    processes = whole(subject.data.get("num_processes")) if kind == "accelerate" else None
    world = processes if processes is not None and processes > 0 else subject.world_size or cluster.num_devices
    found = setting_of(kind, subject.data, world)
    inner = subject.named(found.elsewhere) if found.elsewhere else None
    if inner is not None and kind == "transformers":
        found = setting_of(kind, {**subject.data, "deepspeed": inner.data}, world)
    elif inner is not None:
        found = setting_of("deepspeed", inner.data, world)
    if found.elsewhere:
        subject.report(
            "MEM104", (), f"the memory is decided by {found.elsewhere}, which this file names", "check that file too"
        )
        return
    assumed = _assumed(found, checkpointing)
    for node_class in cluster.classes:
        layout = _layout(found, node_class, world, sequence_length)
        if checkpointing is not None and found.activation_checkpointing is None:
            layout = replace(layout, activation_checkpointing="full" if checkpointing else "none")
        _one_class(
            subject,
            shape,
            layout,
            node_class,
            assumed,
            unsaid=found.activation_checkpointing is None and checkpointing is None,
        )


def _assumed(found: Setting, checkpointing: bool | None) -> str:
    parts = []
    if not found.micro_batch_size:
        parts.append("micro batch 1")
    if found.precision is None:
        parts.append("bf16")
    if found.optimizer is None:
        parts.append("AdamW")
    if found.activation_checkpointing is None and checkpointing is None:
        parts.append("no activation checkpointing")
    return f"; assumed, since the file does not say: {', '.join(parts)}" if parts else ""


def _layout(found: Setting, node_class: NodeClass, world: int, sequence_length: int) -> Layout:
    shard = 1 if found.sharding == "none" else world
    if found.inside_nodes:
        shard = max(1, min(world, node_class.devices_per_node))
    return Layout(
        engine=found.engine,
        data_parallel_replicate_degree=max(1, world // shard),
        data_parallel_shard_degree=shard,
        sharding=found.sharding,
        micro_batch_size=min(found.micro_batch_size or 1, MAX_BATCH),
        gradient_accumulation_steps=min(found.gradient_accumulation_steps, MAX_BATCH),
        sequence_length=sequence_length,
        precision=found.precision or "bf16",
        optimizer=found.optimizer or "adamw",
        activation_checkpointing=found.activation_checkpointing or "none",
        optimizer_offload=found.optimizer_offload,
        parameter_offload=found.parameter_offload,
    )


def _need(shape: ModelShape, layout: Layout, node_class: NodeClass) -> MemoryEstimate:
    return estimate(
        shape,
        layout,
        device_kind=node_class.device.kind,
        ranks_per_node=node_class.devices_per_node,
        device_memory_bytes=node_class.device.usable_memory_bytes,
    )


def _one_class(
    subject: Subject, shape: ModelShape, layout: Layout, node_class: NodeClass, assumed: str, *, unsaid: bool
) -> None:
    memory = _need(shape, layout, node_class)
    have = node_class.device.usable_memory_bytes
    peak = memory.peak_bytes
    text = (
        f"needs {format_bytes(peak.likely)} ({format_bytes(peak.low)} to {format_bytes(peak.high)}) on each"
        f" {node_class.device.name}"
    )
    if have is not None:
        text += f" of {format_bytes(have)}"
    if unsaid:
        less = _need(shape, replace(layout, activation_checkpointing="full"), node_class).peak_bytes.likely
        text += f", or {format_bytes(less)} with activation checkpointing"
    text += assumed
    if have is None:
        subject.report("MEM104", (), f"{text}; the device's memory is not known", "")
        return
    missing, reason = shortage(node_class, memory, layout)
    if not missing:
        subject.report("MEM103", (), text)
        return
    host_short = "host memory" in reason
    code = "MEM101" if peak.likely > have or host_short else "MEM102"
    subject.report(code, (), f"{text}: {reason}" if host_short else text, _advice(layout, memory))


def _advice(layout: Layout, memory: MemoryEstimate) -> str:
    """Return what would help most: the largest term decides."""
    terms = memory.terms_bytes
    moving = terms["activations"] + terms["logits"]
    states = terms["parameters"] + terms["gradients"] + terms["optimizer_states"]
    if moving > states and layout.activation_checkpointing == "none":
        return "activation checkpointing, or a smaller micro batch"
    if moving > states:
        return "a smaller micro batch or shorter sequences"
    if layout.sharding != "parameters" and layout.data_parallel_degree > 1:
        return "ZeRO 3 or FSDP: weights, gradients and states are what fills the device"
    return "more devices, offload, LoRA, or an optimizer with smaller states"
