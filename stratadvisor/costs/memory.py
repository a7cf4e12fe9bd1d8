"""Peak memory of one rank: the largest of three moments of a step, not the sum of everything that ever exists.

loss: all activations and the scores are alive, the gradients of this micro-batch are not yet. backward: its start (all
activations, the first gradients) or its end (all gradients, one layer's activations). optimizer: weights, gradients,
states and what the step needs. The terms are those of the moment that is largest.
"""

from __future__ import annotations

from stratadvisor.costs.activations import in_megatron
from stratadvisor.costs.adapters import base_bytes_per_parameter
from stratadvisor.costs.band import around
from stratadvisor.costs.buffers import context_bytes
from stratadvisor.costs.held import held
from stratadvisor.costs.host import PROCESS_BYTES
from stratadvisor.costs.moments import kept_activation_bytes, moments, whole_activation_bytes
from stratadvisor.costs.parameters import count_parameters, rank_parameters
from stratadvisor.costs.reserve import reserve_bytes, stranded_bytes, wrapping_bytes
from stratadvisor.costs.states import recipe
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.profile import DeviceKind
from stratadvisor.schema.workload import ModelShape

CACHE_SHARE = 0.98
"""Of a device's memory that freed blocks may fill before the allocator gives them back."""


def estimate(
    shape: ModelShape,
    layout: Layout,
    *,
    device_kind: DeviceKind,
    ranks_per_node: int,
    device_memory_bytes: float | None = None,
) -> MemoryEstimate:
    """Return the peak memory of the fullest rank, with its terms.

    On a CPU the device's memory is the host's: the peak is the resident size of the process, offloaded states included.

    Args:
        shape: the model.
        layout: what a rank holds and does.
        device_kind: decides context and buffers.
        ranks_per_node: processes that share a host: they share the parameter server of asynchronous training.
        device_memory_bytes: that a rank may use, None when unknown: freed blocks do not grow beyond it.

    """
    server_share = 1.0 if device_kind == "cpu" else 1 / max(1, ranks_per_node)
    first = _stage(shape, layout, 0, device_kind, server_share, device_memory_bytes)
    stages = layout.pipeline_parallel_degree
    if stages == 1:
        return first
    # even stages differ in what waits on the first and in the scores on the last; uneven ones each in their own way
    others = range(1, stages) if layout.stage_layers else (stages - 1,)
    further = [_stage(shape, layout, stage, device_kind, server_share, device_memory_bytes) for stage in others]
    return max(first, *further, key=lambda found: (found.peak_bytes.likely, found.peak_bytes.high))


def _stage(
    shape: ModelShape,
    layout: Layout,
    stage: int,
    device_kind: DeviceKind,
    server_share: float,
    device_memory_bytes: float | None,
) -> MemoryEstimate:
    """Return the estimate of one pipeline stage."""
    counts = count_parameters(shape)
    kinds = recipe(layout, counts)
    local = rank_parameters(counts, layout, stage)
    states = held(counts, local, layout, kinds, server_share=server_share)
    found = moments(shape, layout, counts, kinds, local, states, stage)
    stranded = dict.fromkeys(found, 0.0)
    if device_kind != "cpu":
        in_flight = 0.0
        if in_megatron(layout) and shape.is_transformer:
            in_flight = kept_activation_bytes(shape, layout, kinds, local, stage)
        stranded = stranded_bytes(shape, layout, kinds, local, states, found, in_flight)
    whole = None
    if in_megatron(layout) and shape.is_transformer:
        whole = whole_activation_bytes(shape, layout, kinds, local, stage)
    context = context_bytes(layout, device_kind)
    limit = None if device_memory_bytes is None else CACHE_SHARE * device_memory_bytes
    base = context + states.weights + states.states + states.adapters
    wrapping = wrapping_bytes(local, layout, kinds, base_bytes_per_parameter(counts, local, layout, kinds))
    if wrapping and device_kind != "cpu":
        found["wrapping"], stranded["wrapping"] = (0.0, 0.0, 0.0, wrapping, 0.0), 0.0
    phase, highest, reserved, allocated = "", (-1.0, -1.0), 0.0, 0.0
    for name, alive in found.items():
        beside, loose = reserve_bytes(local, layout, device_kind, states, alive, whole)
        stranded[name] += loose
        firm = base + sum(alive) + beside
        with_freed = firm + stranded[name]
        reading = (with_freed if limit is None else max(firm, min(with_freed, limit)), firm)
        if reading > highest:
            phase, highest, reserved = name, reading, beside
        if name != "wrapping":
            allocated = max(allocated, base - context + sum(alive))
    gradients, activations, logits, gathered, buffers = found[phase]
    host = states.host
    if device_kind == "cpu":
        buffers += host
    terms = {
        "parameters": states.weights,
        "gradients": gradients,
        "optimizer_states": states.states,
        "activations": activations,
        "logits": logits,
        "gathered_units": gathered,
        "buffers": buffers,
        "adapters": states.adapters,
    }
    terms["reserve"] = reserved
    terms["context"] = context
    peak = around(terms, device_kind, freed=stranded[phase], limit=limit)
    terms["reserve"] += max(0.0, peak.likely - sum(terms.values()))
    return MemoryEstimate(
        terms_bytes=terms,
        peak_bytes=peak,
        peak_phase=phase.partition(" ")[0],
        allocated_bytes=allocated,
        host_bytes_per_rank=peak.likely if device_kind == "cpu" else host + PROCESS_BYTES,
        nvme_bytes_per_rank=states.nvme,
    )
