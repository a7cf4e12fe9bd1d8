"""ZeRO-1: optimizer states divided among all devices."""

from __future__ import annotations

from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.zero import stage_candidates

ZERO1 = Strategy(
    name="zero1",
    title="ZeRO-1",
    family="synchronous",
    target="deepspeed",
    candidates=stage_candidates("zero1", 1),
)
