"""DiLoCo (arXiv:2311.08105): many local steps, then one outer Nesterov step on the mean change of all replicas."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compression import CAST_TYPES
from .config import ConfigError, TrainConfig
from .distributed import Context
from .local import LocalEngine, flatten, same_start, token_shares, write_back

OUTER_LEARNING_RATE = 0.7
OUTER_MOMENTUM = 0.9


class OuterNesterov:
    """SGD with Nesterov momentum on one flat vector: ``m = mu m + d; w -= lr (d + mu m)``."""

    def __init__(self, start: torch.Tensor, learning_rate: float, momentum: float) -> None:
        self.weights = start.clone()
        self.momentum_buffer = torch.zeros_like(start)
        self.learning_rate, self.momentum = learning_rate, momentum

    def step(self, mean_change: torch.Tensor) -> torch.Tensor:
        """Apply the token-weighted mean of ``base - local`` over replicas; return the new weights."""
        self.momentum_buffer.mul_(self.momentum).add_(mean_change)
        self.weights.sub_(mean_change + self.momentum * self.momentum_buffer, alpha=self.learning_rate)
        return self.weights


class DiLoCoEngine(LocalEngine):
    """Each rank trains its own replica; at an exchange replicas count by the tokens they trained on."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.compression == "sign":
            raise ConfigError("compression sign is for ddp: a DiLoCo exchange takes none, bf16 or fp16")
        super().__init__(config, context, model)
        self.communication = []
        same_start(self.parameters)
        settings = config.settings
        self.outer = OuterNesterov(
            flatten(self.parameters),
            float(settings.get("outer_learning_rate", OUTER_LEARNING_RATE)),
            float(settings.get("outer_momentum", OUTER_MOMENTUM)),
        )

    def replica_ranks(self) -> list[int]:
        """Return this rank alone."""
        return [self.context.rank]

    def mean(self, flat: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the token-weighted mean over all ranks."""
        start = self.clock.mark()
        share = token_shares(self.context, tokens)[self.context.rank]
        dtype = CAST_TYPES[self.config.compression]
        sent = flat * share if dtype is None else (flat * share).to(dtype)
        dist.all_reduce(sent)
        if self.communication is not None:
            self.communication.append((start, self.clock.mark()))
        return sent.float()

    def exchange(self, tokens: int) -> None:
        """Average the changes of all replicas, take the outer step, start again from its result."""
        if self.in_warmup:  # the gradients were averaged: note where the replicas are
            self.outer.weights.copy_(flatten(self.parameters))
            return
        mean_change = self.mean(self.outer.weights - flatten(self.parameters), tokens)
        write_back(self.outer.step(mean_change), self.parameters)

    def shared_state(self) -> dict[str, Any]:
        """Return the outer optimizer."""
        return {"outer_weights": self.outer.weights, "outer_momentum": self.outer.momentum_buffer}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.outer.weights.copy_(state["outer_weights"])
        self.outer.momentum_buffer.copy_(state["outer_momentum"])
