"""What the flowchart asks of a candidate, and whether one complies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.rules import ENVIRONMENT_PREFIX, RuleOutcome
from stratadvisor.strategies import STRATEGIES

SHARDING_ORDER = ("none", "optimizer", "gradients", "parameters")
COMPRESSIBLE = ("ddp", "uneven_ddp", "hierarchical", "diloco", "async_sgd")
"""Strategies whose exchange is ours to compress; sharded engines choose the width of theirs."""
SIGN_COMPRESSIBLE = ("ddp", "uneven_ddp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The outcome's settings, typed; None where no rule said anything."""

    family: str | None = None
    precision: str | None = None
    offload_allowed: bool = True
    pin_memory: bool = True
    checkpointing_allowed: bool = True
    minimum_sharding: str = "none"
    model_parallel_allowed: bool = True
    compression: str = "none"
    data_loader_workers: int = 0
    compile_model: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def read_request(outcome: RuleOutcome) -> Request:
    """Return the request that an outcome makes."""
    known: dict[str, Any] = {
        key: value for key, value in outcome.settings.items() if not key.startswith(ENVIRONMENT_PREFIX)
    }
    if "data_loader_workers" in known:
        known["data_loader_workers"] = max(0, int(known["data_loader_workers"]))
    environment = {
        key.removeprefix(ENVIRONMENT_PREFIX): str(value)
        for key, value in outcome.settings.items()
        if key.startswith(ENVIRONMENT_PREFIX)
    }
    return Request(**known, environment=environment)


def in_family(candidate: Candidate, family: str | None) -> bool:
    """Whether the flowchart's family contains a candidate.

    Single: whatever runs on one device, offload included. Synchronous: every exact method with equal shares, one
    device included, and unequal shares where the batch leaves no choice. Uneven synchronous: the same, and shares by
    speed. Hierarchical: periodic averaging across nodes, and HSDP, its exact form.
    """
    if family is None:
        return True
    own = STRATEGIES[candidate.strategy].family
    exact = own in ("single", "synchronous", "uneven_synchronous")
    if family == "single":
        return candidate.num_devices == 1
    if family == "synchronous":
        return exact and (not uneven(candidate) or candidate.global_batch_size % candidate.num_devices != 0)
    if family == "uneven_synchronous":
        return exact
    if family == "hierarchical":
        return own == "hierarchical" or candidate.strategy == "hsdp"
    return own == family


def uneven(candidate: Candidate) -> bool:
    """Whether devices of different classes do different amounts."""
    return len({s.batch_per_device for s in candidate.shares}) > 1


def objection(candidate: Candidate, request: Request, usual_precision: str) -> str:
    """Return which rule a candidate breaks, its family aside; empty when it breaks none.

    ``usual_precision`` is what the whole cluster would use: where the rules say just that, part of the cluster may use
    what its own devices have.
    """
    layout = candidate.layout
    wanted = request.precision
    if wanted is not None and wanted not in (layout.precision, usual_precision):
        return f"the rules ask for {wanted}"
    if not request.offload_allowed and (layout.optimizer_offload != "none" or layout.parameter_offload != "none"):
        return "the rules rule out offload"
    if not request.checkpointing_allowed and layout.activation_checkpointing != "none":
        return "the rules rule out activation checkpointing"
    divided = layout.model_parallel_degree > 1 or layout.engine == "megatron"
    if divided and not request.model_parallel_allowed:
        return "the rules rule out dividing layers"
    least = SHARDING_ORDER.index(request.minimum_sharding)
    if candidate.num_devices > 1 and not divided and SHARDING_ORDER.index(layout.sharding) < least:
        return f"the rules ask for sharded {request.minimum_sharding} at least"
    return ""
