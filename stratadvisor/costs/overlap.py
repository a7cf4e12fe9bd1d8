"""How much communication still shows when it runs beside computation."""

from __future__ import annotations

from stratadvisor.costs import constants as fitted
from stratadvisor.schema.layout import Engine, Layout

_ENGINE_KEY: dict[Engine, str] = {
    "torch": "ddp",
    "ddp": "ddp",
    "fsdp2": "fsdp2",
    "deepspeed": "deepspeed",
    "megatron": "megatron",
    "local": "ddp",
    "async": "ddp",
}


def overlaps_model_parallel(layout: Layout) -> bool:
    """Whether it is a recipe of today's kind: fused attention and layers, transfers beside the products."""
    return layout.flash_attention and layout.compiled


def overlap_cost(layout: Layout, backend: str) -> float:
    """Return the share of hidden communication that lengthens the step all the same."""
    if backend == "gloo":
        return fitted.OVERLAP_COST["gloo"]
    key = _ENGINE_KEY[layout.engine]
    if key == "megatron" and overlaps_model_parallel(layout):
        key = "megatron_overlapped"
    return fitted.OVERLAP_COST[key]


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


def exposed_side_by_side(parts: tuple[tuple[float, float], ...], *, window: float, cost: float) -> float:
    """Return what communications over links of their own add to the one computation that all of them run beside.

    Args:
        parts: (seconds alone, share that becomes ready only when the window has ended) of each.
        window: seconds of the computation.
        cost: share of what is hidden that shows.

    """
    hidden = [min(seconds * (1.0 - late), window) for seconds, late in parts]
    left = max(seconds - under for (seconds, _), under in zip(parts, hidden, strict=True))
    return left + cost * sum(hidden)
