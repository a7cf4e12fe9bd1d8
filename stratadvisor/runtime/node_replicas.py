"""Replicas that are whole nodes: gradients are averaged inside a node in every step, nodes meet every few steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compression import CAST_TYPES
from .config import ConfigError, TrainConfig
from .ddp import DDPEngine
from .distributed import Context
from .local import LocalEngine, same_start


class NodeReplicas(LocalEngine, DDPEngine):
    """DDP on each node; at a meeting each node counts by what it trained on, and its first rank speaks for it."""

    meets_early = False  # ranks of a node wait for each other inside every step, so none may leave it alone

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.compression not in CAST_TYPES:
            raise ConfigError(
                f"compression {config.compression} is not for averaging among nodes, which takes none, bf16 or fp16"
            )
        # Every rank has to make every group, in the same order.
        nodes = sorted(set(context.node_of_rank))
        ranks = {node: [r for r, n in enumerate(context.node_of_rank) if n == node] for node in nodes}
        groups = {node: dist.new_group(ranks[node]) for node in nodes}
        self._leaders = [ranks[node][0] for node in nodes]
        self._leader_group = dist.new_group(self._leaders)
        own = context.node_of_rank[context.rank]
        self.group = groups[own]
        self._node_control = {node: dist.new_group(ranks[node], backend="gloo") for node in nodes}[own]
        super().__init__(config, context, model)
        same_start(self.parameters)

    def replica_ranks(self) -> list[int]:
        """Return the ranks of this node."""
        return self.context.node_ranks

    def control_group(self) -> Any:
        """Return the gloo group of this node."""
        return self._node_control

    def begin_mean(self, flat: torch.Tensor, shares: list[float]) -> Any:
        """Start the mean over nodes: leaders over the network, then each leader inside its node."""
        if len(self._leaders) == 1:
            return lambda: flat
        leader = self.context.node_ranks[0]
        if self.context.rank != leader:

            def receive() -> torch.Tensor:
                dist.broadcast(flat, src=leader, group=self.group)
                return flat

            return receive
        dtype = CAST_TYPES[self.config.compression]
        sent = flat * sum(shares[r] for r in self.context.node_ranks)
        sent = sent if dtype is None else sent.to(dtype)
        work = dist.all_reduce(sent, group=self._leader_group, async_op=True)

        def finish() -> torch.Tensor:
            work.wait()
            mean = sent.float()
            dist.broadcast(mean, src=leader, group=self.group)
            return mean

        return finish
