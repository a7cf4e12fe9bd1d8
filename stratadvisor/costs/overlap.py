"""How much communication still shows when it runs beside computation."""

from __future__ import annotations

from stratadvisor.costs import constants as fitted
from stratadvisor.schema.layout import Engine

_ENGINE_KEY: dict[Engine, str] = {
    "torch": "ddp",
    "ddp": "ddp",
    "fsdp2": "fsdp2",
    "deepspeed": "deepspeed",
    "megatron": "megatron",
    "local": "ddp",
    "async": "ddp",
}


def overlap_cost(engine: Engine, backend: str) -> float:
    """Return the share of hidden communication that lengthens the step all the same."""
    return fitted.OVERLAP_COST["gloo" if backend == "gloo" else _ENGINE_KEY[engine]]


def exposed_seconds(communication: float, window: float, cost: float, tail_share: float = 0.0) -> float:
    """Return what ``communication`` adds to a computation of ``window`` seconds beside it.

    Args:
        communication: seconds it takes alone.
        window: seconds of computation it may hide behind.
        cost: share of the hidden part that shows.
        tail_share: share that becomes ready only when the window has ended.

    """
    tail = communication * tail_share
    hidden = min(communication - tail, window)
    return communication - hidden * (1.0 - cost)
