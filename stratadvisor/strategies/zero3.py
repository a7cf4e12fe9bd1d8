"""ZeRO-3: optimizer states, gradients and parameters divided among all devices."""

from __future__ import annotations

from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.zero import stage_candidates

ZERO3 = Strategy(
    name="zero3",
    title="ZeRO-3",
    family="synchronous",
    target="deepspeed",
    candidates=stage_candidates("zero3", 3),
)
