"""Exact averaging of gradients inside a node in every step, averaging of weights across nodes every few steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compression import CAST_TYPES
from .config import TrainConfig
from .ddp import DDPEngine
from .distributed import Context
from .local import LocalEngine, flatten, same_start, token_shares, write_back


class HierarchicalEngine(LocalEngine, DDPEngine):
    """DDP on each node; nodes meet every ``sync_interval_steps``, each counted by the tokens it trained on.

    Local SGD with periodic averaging (arXiv:1805.09767), a node as the worker. Optimizer states stay local.
    """

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
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

    def mean(self, flat: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the token-weighted mean over nodes: leaders over the network, then each leader inside its node."""
        start = self.clock.mark()
        shares = token_shares(self.context, tokens)
        leader = self.context.node_ranks[0]
        if self.context.rank == leader:
            dtype = CAST_TYPES[self.config.compression]
            sent = flat * sum(shares[r] for r in self.context.node_ranks)
            sent = sent if dtype is None else sent.to(dtype)
            dist.all_reduce(sent, group=self._leader_group)
            flat = sent.float()
        dist.broadcast(flat, src=leader, group=self.group)
        if self.communication is not None:
            self.communication.append((start, self.clock.mark()))
        return flat

    def exchange(self, tokens: int) -> None:
        """Average the weights of the nodes."""
        if len(self._leaders) > 1 and not self.in_warmup:
            write_back(self.mean(flatten(self.parameters), tokens), self.parameters)
