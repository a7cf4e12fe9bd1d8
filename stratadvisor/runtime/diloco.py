"""DiLoCo (arXiv:2311.08105): many local steps, then one outer Nesterov step on the mean change of all replicas."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .compression import CAST_TYPES
from .config import ConfigError, TrainConfig
from .distributed import Context
from .engine import Engine
from .int8 import Int8Sum
from .local import LocalEngine, flatten, same_start
from .overlap import Piece

OUTER_LEARNING_RATE = 0.7
OUTER_MOMENTUM = 0.9


class OuterNesterov:
    """SGD with Nesterov momentum on one flat vector: ``m = mu m + d; w -= lr (d + mu m)``."""

    def __init__(self, start: torch.Tensor, learning_rate: float, momentum: float) -> None:
        self.weights = start.clone()
        self.momentum_buffer = torch.zeros_like(start)
        self.learning_rate, self.momentum = learning_rate, momentum

    def step(self, mean_change: torch.Tensor, elements: slice = slice(None)) -> torch.Tensor:
        """Apply the mean of ``base - local`` over replicas to a part; return its new weights."""
        weights, momentum_buffer = self.weights[elements], self.momentum_buffer[elements]
        momentum_buffer.mul_(self.momentum).add_(mean_change)
        weights.sub_(mean_change + self.momentum * momentum_buffer, alpha=self.learning_rate)
        return weights


class OuterSteps(LocalEngine):
    """The outer optimizer of replicas, whatever a replica is: ``begin_mean`` is left to the engine."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        super().__init__(config, context, model)
        self.communication = []
        same_start(self.parameters)
        settings = config.settings
        self.outer = OuterNesterov(
            flatten(self.parameters),
            float(settings.get("outer_learning_rate", OUTER_LEARNING_RATE)),
            float(settings.get("outer_momentum", OUTER_MOMENTUM)),
        )

    def outgoing(self, piece: Piece, weights: torch.Tensor) -> torch.Tensor:
        """Return how far this replica has gone from where all replicas last were."""
        return self.outer.weights[piece.elements] - weights

    def merged(self, piece: Piece, mean: torch.Tensor) -> torch.Tensor:
        """Take the outer step."""
        return self.outer.step(mean, piece.elements)

    def note_meeting(self) -> None:
        """Note where the replicas are."""
        self.outer.weights.copy_(flatten(self.parameters))

    def consensus(self) -> torch.Tensor:
        """Return the weights of the outer optimizer."""
        return self.outer.weights

    def shared_state(self) -> dict[str, Any]:
        """Return the outer optimizer."""
        return {"outer_weights": self.outer.weights, "outer_momentum": self.outer.momentum_buffer}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.outer.weights.copy_(state["outer_weights"])
        self.outer.momentum_buffer.copy_(state["outer_momentum"])


class DiLoCoEngine(OuterSteps):
    """Each rank trains its own replica; at an exchange replicas count by the tokens they trained on.

    With ``settings.fragments`` and ``settings.delay_steps`` parts of the model are exchanged in turn beside computing
    (streaming DiLoCo, arXiv:2501.18512), replicas then counting by their share of the batch.
    """

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        if config.compression in ("sign", "powersgd"):
            raise ConfigError(
                f"compression {config.compression} is for ddp: a DiLoCo exchange takes none, bf16, fp16 or int8"
            )
        self._exchange_group = dist.new_group()  # its own, so that transfers do not wait for others
        self._int8 = Int8Sum(self._exchange_group) if config.compression == "int8" else None
        super().__init__(config, context, model)

    def replica_ranks(self) -> list[int]:
        """Return this rank alone."""
        return [self.context.rank]

    def begin_mean(self, flat: torch.Tensor, shares: list[float]) -> Any:
        """Start the mean over all ranks."""
        sent = flat * shares[self.context.rank]
        if self._int8 is not None:
            # one error for each kind of vector: pieces, gradients of the warm-up and statistics differ in length
            return self._int8.begin(f"{self._next}-{len(flat)}", sent)
        dtype = CAST_TYPES[self.config.compression]
        sent = sent if dtype is None else sent.to(dtype)
        work = dist.all_reduce(sent, group=self._exchange_group, async_op=True)

        def finish() -> torch.Tensor:
            work.wait()
            return sent.float()

        return finish

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beyond the model, rounding errors included."""
        return super().state() | ({} if self._int8 is None else {"int8_errors": self._int8.errors})

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` returned."""
        super().load_state(state)
        if self._int8 is not None:
            self._int8.errors = state["int8_errors"]


def engine_for(config: TrainConfig, context: Context, model: nn.Module) -> Engine:
    """Return the engine: replicas of one job, or, with ``settings.torchft``, jobs that come and go."""
    if config.settings.get("torchft"):
        from .torchft_engine import TorchftEngine

        return TorchftEngine(config, context, model)
    return DiLoCoEngine(config, context, model)
