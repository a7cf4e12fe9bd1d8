"""Replicas that train on their own and meet every ``sync_interval_steps``: what such engines share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .checkpoint import write_tensors
from .distributed import Context
from .engine import Engine
from .optimizer import local_gradients


def flatten(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a copy of all tensors in one fp32 vector."""
    return torch.cat([t.detach().reshape(-1).float() for t in tensors])


def write_back(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy the pieces of a vector into the tensors."""
    with torch.no_grad():
        offset = 0
        for tensor in tensors:
            tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
            offset += tensor.numel()


def same_start(parameters: list[torch.Tensor]) -> None:
    """Give every rank the parameters of rank 0."""
    with torch.no_grad():
        for parameter in parameters:
            dist.broadcast(parameter, src=0)


def token_shares(context: Context, tokens: int) -> list[float]:
    """Return each rank's share of the tokens trained on since the last exchange."""
    counts = context.gather(torch.tensor([tokens], dtype=torch.float64)).flatten().tolist()
    return [count / sum(counts) for count in counts]


class LocalEngine(Engine):
    """Base of engines whose replicas differ between exchanges: one model at checkpoints, a state file per rank."""

    @property
    def in_warmup(self) -> bool:
        """Whether replicas still average gradients in every step (settings.sync_warmup_fraction of the run)."""
        return self.step < float(self.config.settings.get("sync_warmup_fraction", 0.0)) * self.horizon

    @property
    def exchange_interval(self) -> int:  # type: ignore[override]
        """Steps between exchanges."""
        return 1 if self.in_warmup else self.config.sync_interval_steps

    def mean(self, flat: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the mean of a vector over all replicas, each counted by its tokens; collective."""
        raise NotImplementedError

    def update(self, learning_rate: float, tokens: int) -> None:
        """Step; in the warm-up with the mean gradient, so that all replicas stay the same."""
        if self.in_warmup:
            gradients = local_gradients(self.parameters)
            write_back(self.mean(flatten(gradients), tokens), gradients)
        super().update(learning_rate, tokens)

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on every rank, beyond the model."""
        return {}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take back what ``shared_state`` returned."""

    def save(self, directory: Path) -> None:
        """Write the model once a node and each rank's optimizer state; only right after an exchange."""
        torch.save(self.state(), directory / f"rank-{self.context.rank}.pt")
        if self.context.rank == self.context.node_ranks[0]:
            write_tensors(directory / "state.pt", {"model": self.plain_model().state_dict(), **self.shared_state()})

    def load(self, directory: Path) -> None:
        """Read the model and this rank's state."""
        shared = torch.load(directory / "state.pt", map_location="cpu", weights_only=True)
        self.plain_model().load_state_dict(shared.pop("model"))
        self.load_shared_state(shared)
        own = directory / f"rank-{self.context.rank}.pt"
        self.load_state(torch.load(own, map_location="cpu", weights_only=True))
