"""The 90 % band of a peak: every term has its own doubt, and they are added as independent errors.

States are arithmetic; what a program keeps beside them depends on who wrote it. So a rank full of states is known
within a few percent, and one full of scores is not.
"""

from __future__ import annotations

import math

from stratadvisor.schema.layout import Span
from stratadvisor.schema.profile import DeviceKind

CPU_LOW, CPU_HIGH = 0.16, 0.10
"""On CPUs one doubt for all: the resident size of a process depends on malloc as a whole."""
DOUBT: dict[str, tuple[float, float]] = {
    # padding of shards and vocabularies
    "parameters": (0.01, 0.01),
    "gradients": (0.02, 0.02),
    "optimizer_states": (0.01, 0.01),
    # which matrices have adapters differs between programs
    "adapters": (0.10, 0.10),
    # frozen matrices without adapters keep no input; eager norms, rotary and dropout keep more than the runtime's
    "activations": (0.20, 0.15),
    # what a loss does with its scores is told (Layout.loss), how many copies are alive at once is not
    "logits": (0.40, 0.25),
    # how many units are gathered ahead, sizes of buckets
    "gathered_units": (0.30, 0.30),
    "buffers": (0.50, 0.50),
    "reserve": (1.00, 1.00),
    # driver, kernels, NCCL's channels: versions and topologies
    "context": (0.40, 0.40),
}
"""Relative error downwards and upwards of each term, at which nine in ten published peaks lie inside."""
FREED_DOUBT = (0.80, 0.30)
"""Of freed blocks: they may be used again after all."""


def around(terms: dict[str, float], device_kind: DeviceKind, *, freed: float = 0.0, limit: float | None = None) -> Span:
    """Return the band of a peak.

    Args:
        terms: bytes, ``reserve`` without freed blocks.
        device_kind: cpu or an accelerator.
        freed: bytes of freed blocks that the allocator still holds and can give back.
        limit: bytes of the device that they may fill up to; None: as much as they like.

    """
    firm = sum(terms.values())
    if device_kind == "cpu":
        return Span(low=firm / (1 + CPU_LOW), likely=firm, high=firm * (1 + CPU_HIGH))
    down = math.hypot(*[DOUBT[name][0] * value for name, value in terms.items()])
    up = math.hypot(*[DOUBT[name][1] * value for name, value in terms.items()])
    held = freed if limit is None else min(freed, max(0.0, limit - firm))
    likely = firm + held
    high = likely + math.hypot(up, FREED_DOUBT[1] * held)
    if limit is not None:
        high = max(likely, min(high, max(firm + up, limit)))
    return Span(low=likely - math.hypot(down, FREED_DOUBT[0] * held), likely=likely, high=high)
