"""Frozen models beside the trained one: DPO's reference, a teacher, a reward model.

They hold 16-bit weights and run forward only: 2 bytes and 2 FLOPs per parameter and token, against 6 for training.
"""

from __future__ import annotations

from dataclasses import replace

from stratadvisor.schema.layout import Layout, MemoryEstimate, TimeEstimate
from stratadvisor.schema.workload import Workload

WEIGHT_BYTES = 2.0
FORWARD_SHARE = 1 / 3
"""Of the products of forward and backward."""
TERM = "frozen_models"


def with_frozen_memory(found: MemoryEstimate, layout: Layout, workload: Workload) -> MemoryEstimate:
    """Return the estimate with the frozen weights; divided where the trained model's parameters are."""
    if not workload.frozen_parameters:
        return found
    ranks = layout.tensor_parallel_degree * layout.pipeline_parallel_degree
    if layout.sharding == "parameters" and layout.engine in ("fsdp2", "deepspeed"):
        ranks *= layout.data_parallel_shard_degree
    held = WEIGHT_BYTES * workload.frozen_parameters / ranks
    peak = found.peak_bytes
    return replace(
        found,
        terms_bytes={**found.terms_bytes, TERM: held},
        peak_bytes=replace(peak, low=peak.low + held, likely=peak.likely + held, high=peak.high + held),
    )


def with_frozen_time(found: TimeEstimate, workload: Workload) -> TimeEstimate:
    """Return the estimate with the forward passes of the frozen models, at the rate of the trained one's products."""
    matmul = found.terms_seconds.get("matmul", 0.0)
    if not workload.frozen_parameters or not matmul:
        return found
    share = FORWARD_SHARE * workload.frozen_parameters / workload.model.num_active_parameters
    more, step = share * matmul, found.step_seconds
    return replace(
        found,
        terms_seconds={**found.terms_seconds, TERM: more},
        step_seconds=replace(step, low=step.low + more, likely=step.likely + more, high=step.high + more),
    )
