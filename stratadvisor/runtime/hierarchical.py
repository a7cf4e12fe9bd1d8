"""Exact averaging of gradients inside a node in every step, averaging of weights across nodes every few steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .config import TrainConfig
from .distributed import Context
from .local import flatten
from .node_replicas import NodeReplicas
from .overlap import Piece


class HierarchicalEngine(NodeReplicas):
    """DDP on each node; nodes meet every k = ``sync_interval_steps``, each counted by what it trained on.

    Local SGD with periodic averaging (arXiv:1805.09767), a node as the worker. Optimizer states stay local. With
    ``settings.delay_steps`` d the mean is of the weights d steps ago and is sent while these steps run. Every step is
    at most s long (for SGD the learning rate times ``gradient_clip_norm``), so two nodes are at most 2 d s apart after
    a meeting and 2 (k + d) s at any time: each is the same mean plus its own steps since the snapshot.

    With k = 1 and d = 0 gradients are averaged over all ranks, which is exact for any optimizer.
    """

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        super().__init__(config, context, model)
        # Only a change may be rounded: weights sent in 16 bit would forget every small step.
        self._base = None if config.compression == "none" else flatten(self.parameters)

    @property
    def in_lockstep(self) -> bool:
        """Whether gradients are averaged over all nodes in every step: in the warm-up, and with an interval of one."""
        return self.config.sync_interval_steps == 1 or super().in_lockstep

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
