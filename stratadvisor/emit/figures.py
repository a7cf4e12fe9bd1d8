"""Predicted figures as texts for people, and sizes of buffers, so that templates do no arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stratadvisor.costs.buffers import ZERO3_LIVE_LAYERS, zero_bucket_elements
from stratadvisor.costs.parameters import count_parameters
from stratadvisor.emit.train_config import learning_rate, warmup_steps
from stratadvisor.schema.plan import Interval, NodeGroup, Plan
from stratadvisor.schema.workload import ModelShape
from stratadvisor.units import format_bytes, format_count, format_seconds

DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's own stage3_max_live_parameters and stage3_max_reuse_distance."""


def bucket_elements(model: ModelShape) -> int:
    """Return the elements of one gradient bucket of ZeRO, the number that the memory estimate counts with.

    DeepSpeed's own 5e8 costs 1 GB per 16-bit buffer whatever the model; a twentieth of the model leaves enough buckets
    to overlap and stays below a few percent of the model states.
    """
    return int(zero_bucket_elements(model.num_parameters))


def live_parameters(model: ModelShape) -> int:
    """Return how many gathered parameters ZeRO stage 3 may keep: some layers' worth or the largest matrix."""
    counts = count_parameters(model)
    wanted = max(bucket_elements(model), ZERO3_LIVE_LAYERS * counts.per_layer, counts.largest_matrix)
    return min(DEEPSPEED_LIVE_PARAMETERS, int(wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One node class in words."""

    title: str
    share: str
    memory: str
    available: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Texts for README.md and numbers of elements for config files."""

    model: str
    step: str
    tokens_per_second: str
    utilization: str
    run: str
    run_tokens: str
    energy: str
    exposed_communication: str
    groups: tuple[GroupFigures, ...]
    bucket_elements: int
    prefetch_elements: int
    persistence_elements: int
    live_parameters: int
    rounds: int
    """Exchanges of a run whose replicas train on their own in between."""
    positions: int
    """Positions that the model has at least."""
    shared_expert_width: int
    """Width of all shared experts of a layer together."""
    moe_layers: str
    """Which layers have experts, as Megatron-LM writes it: a Python list of 0 and 1."""
    final_learning_rate: float
    """Where the cosine ends (``runtime.optimizer.FINAL_SHARE``)."""
    warmup_fraction: float
    """Steps of warm-up as a share of the run."""
    micro_batches: int
    """Micro-batches that a device of the first group takes in the whole run."""
    lora_alpha: int
    """Twice the rank (``runtime.lora``)."""


def _span(interval: Interval, text: Callable[[float], str]) -> str:
    return f"{text(interval.likely)} (90 % between {text(interval.low)} and {text(interval.high)})"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _energy(joules: float) -> str:
    watt_hours = joules / 3600
    for factor, unit in ((1e9, "GWh"), (1e6, "MWh"), (1e3, "kWh")):
        if watt_hours >= 0.9995 * factor:
            return f"{watt_hours / factor:.3g} {unit}"
    return f"{watt_hours:.3g} Wh"


def _number(count: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{count} {noun if count == 1 else plural}"


def _group(group: NodeGroup) -> GroupFigures:
    available = "unknown"
    if group.memory_available_bytes is not None:
        available = f"{format_bytes(group.memory_available_bytes)} ({group.memory_available_origin})"
    return GroupFigures(
        title=f"{_number(group.num_nodes, 'node')} of {group.devices_per_node} x {group.device_name}",
        share=f"{_number(group.batch_per_device, 'sequence')} a step"
        f" in {_number(group.gradient_accumulation_steps, 'micro-batch')} of up to {group.micro_batch_size}",
        memory=_span(group.memory_peak_bytes, format_bytes),
        available=available,
    )


def figures(plan: Plan) -> Figures:
    """Return the plan's predictions as texts, and the sizes of its buffers."""
    predicted, model = plan.predicted, plan.workload.model
    bucket = bucket_elements(model)
    return Figures(
        model=f"{model.name} ({format_count(model.num_parameters)} parameters)",
        step=_span(predicted.step_seconds, format_seconds),
        tokens_per_second=_span(predicted.tokens_per_second, format_count),
        utilization="not known for this device"
        if predicted.model_flops_utilization is None
        else _span(predicted.model_flops_utilization, _percent),
        run=_span(predicted.run_seconds, format_seconds),
        run_tokens=f"{format_count(predicted.run_tokens)} tokens in {predicted.run_steps} steps",
        energy="not predicted" if predicted.energy_joules is None else _span(predicted.energy_joules, _energy),
        exposed_communication=_percent(predicted.exposed_communication_fraction),
        groups=tuple(_group(group) for group in plan.groups),
        bucket_elements=bucket,
        prefetch_elements=min(50_000_000, bucket),
        persistence_elements=min(100_000, 10 * model.hidden_size) if model.hidden_size else 100_000,
        live_parameters=live_parameters(model),
        positions=max(plan.batch.sequence_length, model.max_sequence_length),
        shared_expert_width=model.num_shared_experts * model.ffn_hidden_size,
        moe_layers=f"([0]*{model.num_dense_layers}+[1]*{model.num_layers - model.num_dense_layers})",
        final_learning_rate=0.1 * learning_rate(plan),
        warmup_fraction=warmup_steps(plan) / max(1, predicted.run_steps),
        micro_batches=predicted.run_steps * plan.batch.gradient_accumulation_steps,
        lora_alpha=2 * plan.workload.lora_rank,
        rounds=math.ceil(predicted.run_steps / plan.synchronization.sync_interval_steps),
    )
