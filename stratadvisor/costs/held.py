"""Model states: what a rank holds from step to step, on the device and off it."""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor.costs.adapters import base_bytes_per_parameter, trained_parameters, whole_scale_bytes
from stratadvisor.costs.host import offloaded, server_bytes
from stratadvisor.costs.parameters import ParameterCounts, RankParameters
from stratadvisor.costs.states import Recipe, shard_degrees
from stratadvisor.schema.layout import Layout

OUTER_BYTES = 8.0
"""DiLoCo: the last common weights and their momentum, fp32 (arXiv:2311.08105)."""
SUB_GROUP_ELEMENTS = 1e8
"""DeepSpeed's sub_group_size as we emit it: what ZeRO-3 updates at a time. (Its default of 1e9 costs 6 GB more.)"""
WHOLE_COPY_BYTES = 8.0
"""DeepSpeed's fp16 optimizer without ZeRO: every gradient in fp32, and all of them flat
(runtime/fp16/fused_optimizer.py, ``step``)."""
OUTER_EXCHANGE_BYTES, AVERAGE_EXCHANGE_BYTES = 12.0, 8.0
"""At an exchange, per trained parameter: the flat change, what is sent, and the outer step's own copies; without an
outer optimizer the flat weights and what is sent."""

UNDER_WAY_BYTES = 8.0
"""While an exchange is under way: the weights it was launched from, and what is sent, fp32 (runtime/local.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes on the device, and off it."""

    weights: float
    gradients: float
    """Once all of them exist."""
    states: float
    adapters: float
    """Everything trained under LoRA: weights, gradients, states."""
    step_copy: float
    """DeepSpeed: flat copy of the gradients, and its fp32 version, for the optimizer step. local: flat copies at an
    exchange. async: the flat gradient that is pushed."""
    host: float
    nvme: float


def held(counts: ParameterCounts, local: RankParameters, layout: Layout, kinds: Recipe, *, server_share: float) -> Held:
    """Return the model states of one rank; ``server_share``: of the parameter server's memory that counts for it."""
    by_weights, by_gradients, by_states = shard_degrees(layout)
    full = layout.method == "full"
    if full:
        with_gradients = _divided(local, layout, by_gradients)
        with_states = _divided(local, layout, by_states)
    else:
        trained = trained_parameters(counts, local, layout)
        with_gradients, with_states = trained / by_gradients, trained / by_states
    weights = _divided(local, layout, by_weights) * base_bytes_per_parameter(counts, local, layout, kinds)
    scales = whole_scale_bytes(counts, local, layout, by_weights)
    gradients = kinds.gradient * with_gradients
    states = kinds.states * with_states
    step_copy = _step_copy(layout, kinds, with_states)
    host = nvme = 0.0
    to_host, parameters_to_host = layout.optimizer_offload, layout.parameter_offload
    if layout.engine == "fsdp2":
        if "none" not in (to_host, parameters_to_host) or to_host != parameters_to_host:
            # CPUOffloadPolicy moves weights, gradients and states together
            host = weights + gradients + states + 0.25 * (weights + gradients)
            weights = gradients = states = 0.0
    elif to_host != "none" or parameters_to_host != "none":
        host, nvme = offloaded(layout, weights, 4.0 * with_states, states, with_states)
        if to_host != "none":
            states = step_copy = 0.0
            if layout.sharding in ("gradients", "parameters"):
                gradients = 0.0
        if parameters_to_host != "none":
            weights = 0.0
    if layout.engine == "local":
        states += (OUTER_BYTES if layout.outer_optimizer else 0.0) * with_states
        step_copy = (OUTER_EXCHANGE_BYTES if layout.outer_optimizer else AVERAGE_EXCHANGE_BYTES) * with_states
        if layout.exchange_delay_steps:
            states += UNDER_WAY_BYTES * with_states
    elif layout.engine == "async":
        host += server_share * server_bytes(layout.data_parallel_degree, kinds.states, with_states) + 4.0 * with_states
        states, step_copy = 0.0, 4.0 * with_states
    adapters = 0.0
    if not full:
        adapters = (kinds.weight * trained / by_weights) + gradients + states + step_copy
        gradients = states = step_copy = 0.0
    return Held(
        weights=weights + scales,
        gradients=gradients,
        states=states,
        adapters=adapters,
        step_copy=step_copy,
        host=host,
        nvme=nvme,
    )


def _step_copy(layout: Layout, kinds: Recipe, with_states: float) -> float:
    """Return what DeepSpeed's optimizers copy for a step; stage 3 takes one sub-group after the other."""
    if layout.engine != "deepspeed" or kinds.gradient > 4:
        return 0.0
    if layout.sharding == "none":
        return WHOLE_COPY_BYTES * with_states if layout.precision == "fp16" else 0.0
    at_once = min(with_states, SUB_GROUP_ELEMENTS) if layout.sharding == "parameters" else with_states
    return (6.0 if kinds.compute == 2 else 4.0) * at_once


def _divided(local: RankParameters, layout: Layout, ranks: int) -> float:
    """Return the parameters per rank; experts lie on 1/expert_parallel_degree as many replicas already."""
    if ranks == 1:
        return local.total
    if layout.expert_parallel_degree == 1 or not local.experts:
        return local.total / ranks
    replicas = max(1.0, ranks / layout.expert_parallel_degree)
    return (local.dense + local.root) / ranks + local.experts / replicas
