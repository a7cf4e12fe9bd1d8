"""Ways to spread training over devices: one file each, one line each in ``STRATEGIES``."""

from __future__ import annotations

from stratadvisor.strategies.async_sgd import ASYNC_SGD
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.ddp import DDP
from stratadvisor.strategies.diloco import DILOCO
from stratadvisor.strategies.federated import FEDERATED
from stratadvisor.strategies.fsdp2 import FSDP2
from stratadvisor.strategies.hierarchical import HIERARCHICAL
from stratadvisor.strategies.hsdp import HSDP
from stratadvisor.strategies.megatron_3d import MEGATRON_3D
from stratadvisor.strategies.plugged import plugged
from stratadvisor.strategies.single import SINGLE
from stratadvisor.strategies.tp_fsdp2 import TP_FSDP2
from stratadvisor.strategies.uneven_ddp import UNEVEN_DDP
from stratadvisor.strategies.zero1 import ZERO1
from stratadvisor.strategies.zero2 import ZERO2
from stratadvisor.strategies.zero3 import ZERO3
from stratadvisor.strategies.zero_offload import ZERO_OFFLOAD

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        SINGLE,
        DDP,
        UNEVEN_DDP,
        HIERARCHICAL,
        FSDP2,
        HSDP,
        ZERO1,
        ZERO2,
        ZERO3,
        ZERO_OFFLOAD,
        TP_FSDP2,
        MEGATRON_3D,
        DILOCO,
        ASYNC_SGD,
        FEDERATED,
    )
}
"""Simplest first: of two equally good ones the earlier is preferred. Plug-ins come last."""
STRATEGIES.update(plugged(tuple(STRATEGIES)))

__all__ = ["STRATEGIES", "Strategy"]
