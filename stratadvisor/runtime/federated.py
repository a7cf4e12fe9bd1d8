"""A site of a federated run: it trains on its own data and hands out weights only; and the server's outer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from .config import ConfigError, TrainConfig
from .data import IGNORED, batches
from .diloco import OuterNesterov
from .distributed import Context, find_device
from .engine import Engine
from .integrity import write_tensors
from .optimizer import learning_rate

Weights = dict[str, torch.Tensor]
STATE_NAME = "site.pt"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which client this is, and where its data and its notes lie."""

    group: int = 0
    """Index into ``config.groups``: the share of the batch."""
    device: int = 0
    """Index of its device on this machine."""
    part: int = 0
    parts: int = 1
    """Clients of one machine share its file: this one has every ``parts``-th sample from ``part`` on."""
    data: Path | None = None
    directory: Path | None = None
    """Optimizer states and the position in the data are kept here from round to round; None: forgotten."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a client hands out after a round."""

    weights: Weights
    """On the host, in fp32."""
    examples: int
    """Tokens trained on: its weight in the mean."""
    loss: float
    """Mean over those tokens."""


class Client:
    """One device of one site."""

    def __init__(
        self,
        config: TrainConfig,
        build_model: Callable[..., Any],
        build_data: Callable[..., Any],
        place: Place,
    ) -> None:
        if place.group >= len(config.groups):
            raise ConfigError(f"there is no group {place.group}: the plan has {len(config.groups)}")
        if not 0 <= place.part < place.parts:
            raise ConfigError(f"part {place.part} of {place.parts} parts: parts count from 0")
        group = config.groups[place.group]
        self.config, self.place = config, place
        self.context = Context(
            rank=0,
            local_rank=place.device,
            world_size=1,
            device=find_device(config, place.device),
            node_of_rank=(0,),
            group_of_rank=(place.group,),
            batch_of_rank=(group.batch_per_device,),
            micro_batches=group.gradient_accumulation_steps,
        )
        torch.manual_seed(config.seed)
        self.engine = Engine(config, self.context, build_model(config))
        self.dataset: Dataset[Any] = build_data(config, place.data)
        if place.parts > 1:
            size = len(self.dataset)
            self.dataset = Subset(self.dataset, range(place.part, size, place.parts))
        self.step = self.samples = 0
        kept = None if place.directory is None else place.directory / STATE_NAME
        if kept is not None and kept.is_file():
            state = torch.load(kept, map_location="cpu", weights_only=True)
            self.step, self.samples = state.pop("step"), state.pop("samples")
            self.engine.load_state(state)

    def forget(self) -> None:
        """Begin a run: what an earlier one left is not taken up."""
        if self.step:
            self.engine.optimizer = self.engine.make_optimizer()
            self.step = self.samples = 0

    def train(self, weights: Weights, steps: int) -> Round:
        """Take the weights of the server, run local optimizer steps, return what came out."""
        self.engine.plain_model().load_state_dict(weights)
        feed = batches(
            self.dataset,
            self.config,
            self.context.shares,
            0,
            num_micro_batches=self.context.micro_batches,
            start_sample=self.samples,
        )
        examples, loss = 0, torch.zeros((), dtype=torch.float64)
        for _ in range(steps):
            micro_batches = [next(feed) for _ in range(self.context.micro_batches)]
            tokens = sum(int((labels != IGNORED).sum()) for _, labels in micro_batches)
            self.engine.step = self.step
            self.engine.expect(tokens)
            for index, (inputs, labels) in enumerate(micro_batches):
                place = self.context.device
                found = self.engine.forward_backward(
                    inputs.to(place), labels.to(place), last=index == len(micro_batches) - 1
                )
                loss += found.double().cpu()
            self.engine.update(learning_rate(self.config, self.step, self.config.warmup_steps), tokens)
            examples += tokens
            self.step += 1
            self.samples += self.context.global_batch_size
        self._keep()
        return Round(weights=self.weights(), examples=examples, loss=float(loss) / max(1, examples))

    def weights(self) -> Weights:
        """Return the model's weights on the host."""
        state = self.engine.plain_model().state_dict()
        return {name: value.detach().to("cpu", torch.float32) for name, value in state.items()}

    def _keep(self) -> None:
        if self.place.directory is None:
            return
        self.place.directory.mkdir(parents=True, exist_ok=True)
        state = {"step": self.step, "samples": self.samples, **self.engine.state()}
        write_tensors(self.place.directory / STATE_NAME, state)


class OuterStep:
    """The server's step on the clients' weighted mean; learning rate 1 without momentum is federated averaging."""

    def __init__(self, start: Weights, learning_rate: float, momentum: float) -> None:
        self._shapes = {name: value.shape for name, value in start.items()}
        self._outer = OuterNesterov(_flat(start), learning_rate, momentum)

    def __call__(self, mean: Weights) -> Weights:
        """Return the weights that the next round begins with."""
        change = self._outer.weights - _flat({name: mean[name] for name in self._shapes})
        return self._shaped(self._outer.step(change).clone())

    def _shaped(self, flat: torch.Tensor) -> Weights:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}

    def state(self) -> Weights:
        """Return what going on later needs."""
        return {"weights": self._outer.weights, "momentum": self._outer.momentum_buffer}

    def load_state(self, state: Weights) -> Weights:
        """Take it back; return the weights that the next round begins with."""
        self._outer.weights.copy_(state["weights"])
        self._outer.momentum_buffer.copy_(state["momentum"])
        return self._shaped(self._outer.weights.clone())


def _flat(weights: Weights) -> torch.Tensor:
    return torch.cat([value.float().flatten() for value in weights.values()])
