"""Replicas that train on their own and meet every ``sync_interval_steps``: what such engines share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .config import TrainConfig
from .distributed import Context
from .engine import Engine
from .integrity import write_tensors
from .optimizer import local_gradients
from .overlap import Flight, Piece, schedule


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


def saved_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers of real numbers that belong to the model's state (running statistics), not caches."""
    saved = model.state_dict(keep_vars=True)
    return [b for name, b in model.named_buffers() if name in saved and b.is_floating_point()]


class LocalEngine(Engine):
    """Base of engines whose replicas differ between exchanges.

    Between two meetings the weights are exchanged in ``settings.fragments`` pieces, each launched
    ``settings.delay_steps`` steps before its mean is applied, so that the transfer runs beside computing. What a
    replica has learnt meanwhile is kept: ``w = new + (w - snapshot)``. Replicas then are never equal, but at most the
    progress of the steps since the snapshot apart (see ``HierarchicalEngine``).
    """

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        super().__init__(config, context, model)
        self.delay = int(config.settings.get("delay_steps", 0))
        self.schedule = schedule(
            [p.numel() for p in self.parameters],
            interval=config.sync_interval_steps,
            pieces=int(config.settings.get("fragments", 1)),
            delay=self.delay,
        )
        self.overlapping = self.delay > 0 or len(self.schedule) > 1
        self._buffers = saved_buffers(self.plain_model())
        self._since_meeting, self._next = 0, 0
        self._flight: Flight | None = None

    @property
    def in_lockstep(self) -> bool:
        """Whether replicas still average gradients in every step (settings.sync_warmup_fraction of the run)."""
        return self.step < float(self.config.settings.get("sync_warmup_fraction", 0.0)) * self.horizon

    @property
    def exchange_interval(self) -> int:  # type: ignore[override]
        """Steps between meetings."""
        return 1 if self.in_lockstep else self.config.sync_interval_steps

    def mean(self, flat: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the mean of a vector over all replicas, each counted by its tokens; collective."""
        start = self.clock.mark()
        mean: torch.Tensor = self.begin_mean(flat, token_shares(self.context, tokens))()
        self._waited(start)
        return mean

    def begin_mean(self, flat: torch.Tensor, shares: list[float]) -> Any:
        """Start the mean over replicas, rank r counting ``shares[r]``; return the function that waits for it."""
        raise NotImplementedError

    def outgoing(self, piece: Piece, weights: torch.Tensor) -> torch.Tensor:
        """Return what this replica contributes, given its weights of a piece."""
        raise NotImplementedError

    def merged(self, piece: Piece, mean: torch.Tensor) -> torch.Tensor:
        """Return the weights that all replicas go on from, given the mean of what they contributed."""
        raise NotImplementedError

    def note_meeting(self) -> None:
        """Note where the replicas, which are equal in lockstep, are."""

    def update(self, learning_rate: float, tokens: int) -> None:
        """Step; in lockstep with the mean gradient, so that all replicas stay the same."""
        if self.in_lockstep:
            gradients = local_gradients(self.parameters)
            write_back(self.mean(flatten(gradients), tokens), gradients)
            super().update(learning_rate, tokens)
            return
        super().update(learning_rate, tokens)
        self._since_meeting += 1
        if not self.overlapping or self._since_meeting >= self.exchange_interval:
            return  # the rest is done when the replicas meet
        if self._flight is not None and self._since_meeting >= self._flight.piece.apply_step:
            self._land()
        if self._flight is None and self._since_meeting >= self.schedule[self._next].launch_step:
            self._launch(self.static_shares())

    def static_shares(self) -> list[float]:
        """Return each rank's share of the samples: known everywhere without asking, for exchanges under way."""
        batches = self.context.batch_of_rank
        return [batch / sum(batches) for batch in batches]

    def _launch(self, shares: list[float]) -> None:
        piece = self.schedule[self._next]
        snapshot = flatten(self.parameters[piece.first : piece.last])
        start = self.clock.mark()
        self._flight = Flight(piece, snapshot, self.begin_mean(self.outgoing(piece, snapshot), shares))
        self._waited(start)
        self._next += 1

    def _land(self) -> None:
        assert self._flight is not None
        start = self.clock.mark()
        mean = self._flight.finish()
        self._waited(start)
        parameters = self.parameters[self._flight.piece.first : self._flight.piece.last]
        progress = flatten(parameters) - self._flight.snapshot
        write_back(self.merged(self._flight.piece, mean) + progress, parameters)
        self._flight = None

    def _waited(self, start: Any) -> None:
        if self.communication is not None:
            self.communication.append((start, self.clock.mark()))

    def exchange(self, tokens: int) -> None:
        """Let replicas meet: what is under way is applied, what is still due is exchanged, buffers are averaged.

        A rank that was asked to stop comes early and does the same exchanges in the same order as the others.
        """
        if self._buffers:
            write_back(self.mean(flatten(self._buffers), tokens), self._buffers)
        if self.in_lockstep:
            self.note_meeting()
            return
        if self._flight is not None:
            self._land()
        while self._next < len(self.schedule):
            self._launch(self.static_shares() if self.overlapping else token_shares(self.context, tokens))
            self._land()
        self._since_meeting, self._next = 0, 0

    def shared_state(self) -> dict[str, Any]:
        """Return what is the same on every rank, beyond the model."""
        return {}

    def load_shared_state(self, state: dict[str, Any]) -> None:
        """Take back what ``shared_state`` returned."""

    def consensus(self) -> torch.Tensor:
        """Return the one vector of weights that stands for all replicas; collective."""
        return self.mean(flatten(self.parameters), 1)

    def save(self, directory: Path) -> None:
        """Write one model once a node and each rank's state; only right after a meeting."""
        own = self.state()
        model = self.plain_model().state_dict()
        if self.overlapping:
            own["parameters"] = flatten(self.parameters)
            names = [name for name, p in self.plain_model().named_parameters() if p.requires_grad]
            pieces = torch.split(self.consensus(), [p.numel() for p in self.parameters])
            model |= {
                n: piece.view_as(p).to(p.dtype) for n, piece, p in zip(names, pieces, self.parameters, strict=True)
            }
        write_tensors(directory / f"rank-{self.context.rank}.pt", own)
        if self.context.rank == self.context.node_ranks[0]:
            write_tensors(directory / "state.pt", {"model": model, **self.shared_state()})

    def load(self, directory: Path) -> None:
        """Read the model and this rank's state."""
        shared = torch.load(directory / "state.pt", map_location="cpu", weights_only=True)
        self.plain_model().load_state_dict(shared.pop("model"))
        self.load_shared_state(shared)
        own = torch.load(directory / f"rank-{self.context.rank}.pt", map_location="cpu", weights_only=True)
        if "parameters" in own:
            write_back(own.pop("parameters"), self.parameters)
        self.load_state(own)
