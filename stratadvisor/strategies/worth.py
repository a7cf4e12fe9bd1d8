"""What a more complex way to train must gain over a simpler one."""

from __future__ import annotations

from stratadvisor.costs.constants import EAGER_FACTOR, ELEMENTWISE_BACKWARD
from stratadvisor.schema.layout import Candidate

SIMPLICITY_GAIN = 0.10
"""Sharding must beat a replica that fits, DeepSpeed what torch shards itself, divided layers all of them, inexact
methods all exact ones, and offload all else, by this share; our choice. DeepSpeed and FSDP2 closer than this cannot be
told apart: published runs of ZeRO-1 took 6 to 9 % longer than predicted, those of FSDP as long (docs/accuracy.md)."""
OTHER_PROGRAM_GAIN = 0.25
"""Another training program (Megatron) must beat what the bundle runs by itself by this share: it is a change of the
user's code, data and checkpoints, and the bundle cannot try it on this machine; our choice."""
MEGATRON = "megatron"


def brings_library(candidate: Candidate) -> bool:
    """Whether training needs a library beside torch, which has to fit its release."""
    return candidate.layout.engine == "deepspeed"


def is_other_program(candidate: Candidate) -> bool:
    """Whether another program trains, which the bundle does not bring along."""
    return candidate.layout.engine == MEGATRON


def needed_share(candidate: Candidate, simpler: Candidate) -> float:
    """Return the share of the simpler way's time that ``candidate`` may take at most to be worth it.

    Another program must gain even over what the bundle's own would do compiled, which is one setting.
    """
    if is_other_program(candidate):
        return (1 - OTHER_PROGRAM_GAIN) * compiled_share(simpler)
    return 1 - SIMPLICITY_GAIN


def compiled_share(candidate: Candidate) -> float:
    """Return the share of its time that a candidate of the bundle's own program would take compiled, about.

    Compiled code passes over memory half as often (``costs.constants.EAGER_FACTOR``), again where a forward pass is
    repeated, and launches few kernels.
    """
    layout, terms = candidate.layout, candidate.time.terms_seconds
    if layout.compiled or layout.engine in ("deepspeed", MEGATRON):
        return 1.0
    passes = terms.get("memory_bound", 0.0)
    if layout.activation_checkpointing != "none":
        passes *= 1 + 1 / (1 + ELEMENTWISE_BACKWARD)
    saved = (1 - 1 / EAGER_FACTOR) * passes + terms.get("launch", 0.0)
    return 1 - saved / candidate.time.step_seconds.likely
