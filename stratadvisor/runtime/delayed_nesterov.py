"""Outer steps of asynchronous averaging after local steps (arXiv:2401.09135): momentum waits until N changes came."""

from __future__ import annotations

from typing import Any

import torch


class DelayedNesterov:
    """Nesterov momentum over changes that come one by one.

    Every change moves the weights at once by a plain step of its N-th part; after N of them their mean enters the
    momentum, and the momentum the weights: ``m = mu m + mean; w -= lr mu m``. N changes that come together are one
    Nesterov step on their mean, as in DiLoCo; momentum on every single stale change would add up N-fold.
    """

    def __init__(self, num_weights: int, learning_rate: float, momentum: float, every: int) -> None:
        self.learning_rate, self.momentum, self.every = learning_rate, momentum, every
        self.momentum_buffer = torch.zeros(num_weights)
        self._sum, self._count = torch.zeros(num_weights), 0

    def step(self, weights: torch.Tensor, mean_change: torch.Tensor, count: int, factor: float = 1.0) -> None:
        """Apply the mean of ``count`` changes (where they began less where they ended) to ``weights``, in place.

        ``factor``: of the learning rate, for this step.
        """
        part = mean_change * (count / self.every)
        self._sum.add_(part)
        self._count += count
        step = part
        if self._count >= self.every:
            mean = self._sum * (self.every / self._count)  # more than N where several came at once
            self.momentum_buffer.mul_(self.momentum).add_(mean)
            step = part + self.momentum * self.momentum_buffer
            self._sum.zero_()
            self._count = 0
        weights.sub_(step, alpha=self.learning_rate * factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"momentum": self.momentum_buffer, "sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` returned."""
        self.momentum_buffer.copy_(state["momentum"])
        self._sum.copy_(state["sum"])
        self._count = int(state["count"])
