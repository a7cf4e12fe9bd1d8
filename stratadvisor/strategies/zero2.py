"""ZeRO-2: optimizer states and gradients divided among all devices."""

from __future__ import annotations

from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.zero import stage_candidates

ZERO2 = Strategy(
    name="zero2",
    title="ZeRO-2",
    family="synchronous",
    target="deepspeed",
    candidates=stage_candidates("zero2", 2),
)
