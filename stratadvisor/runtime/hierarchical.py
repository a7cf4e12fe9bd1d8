"""Exact averaging of gradients inside a node in every step, averaging of weights across nodes every few steps."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compression import CAST_TYPES
from .config import ConfigError, TrainConfig
from .ddp import DDPEngine
from .distributed import Context
from .local import LocalEngine, flatten, same_start
from .overlap import Piece


class HierarchicalEngine(LocalEngine, DDPEngine):
    """DDP on each node; nodes meet every k = ``sync_interval_steps``, each counted by what it trained on.

    Local SGD with periodic averaging (arXiv:1805.09767), a node as the worker. Optimizer states stay local. With
    ``settings.delay_steps`` d the mean is of the weights d steps ago and is sent while these steps run. Every step is
    at most s long (for SGD the learning rate times ``gradient_clip_norm``), so two nodes are at most 2 d s apart after
    a meeting and 2 (k + d) s at any time: each is the same mean plus its own steps since the snapshot.

    With k = 1 and d = 0 gradients are averaged over all ranks, which is exact for any optimizer.
    """

    meets_early = False  # ranks of a node wait for each other inside every step, so none may leave it alone

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.compression not in CAST_TYPES:
            raise ConfigError(
                f"compression {config.compression} is not for hierarchical averaging, which takes none, bf16 or fp16"
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
        # Only a change may be rounded: weights sent in 16 bit would forget every small step.
        self._base = None if config.compression == "none" else flatten(self.parameters)

    @property
    def in_lockstep(self) -> bool:
        """Whether gradients are averaged over all nodes in every step: in the warm-up, and with an interval of one."""
        return self.config.sync_interval_steps == 1 or super().in_lockstep

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

    def outgoing(self, piece: Piece, weights: torch.Tensor) -> torch.Tensor:
        """Return a copy of the weights, into which the mean of all is received; what changed, where it is rounded."""
        return weights.clone() if self._base is None else weights - self._base[piece.elements]

    def merged(self, piece: Piece, mean: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        return mean if self._base is None else self._base[piece.elements].add_(mean)

    def note_meeting(self) -> None:
        """Note where the nodes are."""
        if self._base is not None:
            self._base.copy_(flatten(self.parameters))

    def consensus(self) -> torch.Tensor:
        """Return the mean over nodes, or where all of them last were."""
        return super().consensus() if self._base is None else self._base

    def shared_state(self) -> dict[str, Any]:
        """Return where the nodes last were, where that is needed."""
        return {} if self._base is None else {"base": self._base}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        if self._base is not None:
            self._base.copy_(state["base"])
