"""DiLoCo whose replicas come and go while it runs: each is a job of its own, torchft's Manager brings them together.

Package torchft (0.2), a lighthouse that all replicas reach (TORCHFT_LIGHTHOUSE), and a number for each replica
(STRATADVISOR_REPLICA, from 0). A replica that is lost is left out of the next exchange; one that comes takes weights,
outer momentum and step of the others at an exchange, and trains from there.
"""

from __future__ import annotations

import atexit
import importlib
import os
import socket
import urllib.parse
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

from .checkpoint import Position
from .config import ConfigError, LostError, TrainConfig, TrainingError
from .diloco import OUTER_LEARNING_RATE, OUTER_MOMENTUM, OuterNesterov
from .distributed import DEFAULT_TIMEOUT_SECONDS, Context
from .engine import Engine
from .local import flatten, saved_buffers, write_back

EXCHANGE_SECONDS = 120.0
"""How long an exchange may take before it is given up and made again (settings.exchange_seconds)."""


class Part:
    """Every n-th item of a dataset, for one of n replicas that do not know of each other's reading."""

    def __init__(self, dataset: Any, replica: int, replicas: int) -> None:
        self._dataset, self._replica, self._replicas = dataset, replica, replicas
        self.fixed_tokens = getattr(dataset, "fixed_tokens", False)

    def __len__(self) -> int:
        return len(self._dataset) // self._replicas

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index * self._replicas + self._replica]


def _manager(config: TrainConfig, replica: int, engine: TorchftEngine) -> tuple[Any, Any]:
    """Return (torchft's Manager, the store it needs).

    Raises:
        ConfigError: torchft or the lighthouse's address is missing.
        TrainingError: the lighthouse cannot be reached.

    """
    try:
        torchft: Any = importlib.import_module("torchft")
    except ImportError as problem:
        raise ConfigError(
            f"settings.torchft needs the package torchft ({problem}): pip install torchft, or leave the setting out"
        ) from None
    lighthouse = os.environ.get("TORCHFT_LIGHTHOUSE", "")
    if not lighthouse:
        raise ConfigError("settings.torchft needs TORCHFT_LIGHTHOUSE=http://HOST:PORT, where torchft_lighthouse runs")
    seconds = float(config.settings.get("exchange_seconds", EXCHANGE_SECONDS))
    patience = float(config.settings.get("timeout_seconds", DEFAULT_TIMEOUT_SECONDS))
    try:
        host = own_address(lighthouse)
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        manager = torchft.Manager(
            pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=seconds)),
            load_state_dict=engine.take_over,
            state_dict=engine.handed_over,
            min_replica_size=1,
            use_async_quorum=False,
            rank=0,
            world_size=1,
            store_addr=host,
            store_port=store.port,
            lighthouse_addr=lighthouse,
            replica_id=f"replica-{replica}",
            hostname=host,
            timeout=timedelta(seconds=seconds),
            quorum_timeout=timedelta(seconds=patience),
        )
    except (RuntimeError, OSError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise TrainingError(f"replica {replica} cannot start with the lighthouse at {lighthouse}: {reason}") from None
    return manager, store


def own_address(lighthouse: str) -> str:
    """Return the address of this host that the way to the lighthouse begins at: where other replicas find it."""
    parts = urllib.parse.urlsplit(lighthouse)
    if not parts.hostname or not parts.port:
        raise ValueError("it must be like http://HOST:PORT")
    family, kind, protocol, _, place = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


class TorchftEngine(Engine):
    """One replica: local steps, then an outer Nesterov step on the token-weighted mean change of who is there."""

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        settings = config.settings
        if context.world_size != 1:
            raise ConfigError("settings.torchft: start every replica by itself, as one process with WORLD_SIZE 1")
        if config.compression != "none" or settings.get("delay_steps") or int(settings.get("fragments", 1)) > 1:
            raise ConfigError("settings.torchft goes with neither compression, delay_steps nor fragments")
        text = os.environ.get("STRATADVISOR_REPLICA", "")
        if not text.isdigit() or int(text) >= config.world_size:
            raise ConfigError(
                f"settings.torchft needs STRATADVISOR_REPLICA, a number from 0 to {config.world_size - 1}, not {text!r}"
            )
        self.replica = int(text)
        self.exchange_interval = config.sync_interval_steps
        super().__init__(config, context, model)
        self._buffers = saved_buffers(self.model)
        self.outer = OuterNesterov(
            flatten(self.parameters),
            float(settings.get("outer_learning_rate", OUTER_LEARNING_RATE)),
            float(settings.get("outer_momentum", OUTER_MOMENTUM)),
        )
        self._done, self._unsent, self._taken_over = 0, 0.0, False
        self.manager, self._store = _manager(config, self.replica, self)
        atexit.register(self.manager.shutdown, wait=False)

    def part(self, dataset: Any) -> Any:
        """Return what this replica reads."""
        return Part(dataset, self.replica, self.config.world_size)

    def begin(self, loop: Any) -> None:
        """Meet whoever is there, contributing nothing, and go on from where they are."""
        self._done = loop.position.step
        self.exchange(0)
        if self._done != loop.position.step:
            print(f"replica {self.replica} joins at step {self._done}", flush=True)
            loop.go_to(Position(self._done, self._done * loop.context.global_batch_size))

    def update(self, learning_rate: float, tokens: int) -> None:
        """Step on this replica alone."""
        super().update(learning_rate, tokens)
        self._done = self.step + 1

    def exchange(self, tokens: int) -> None:
        """Meet the replicas that are there now; a failed exchange is made up for by the next one."""
        start = self.clock.mark()
        self._unsent += tokens
        self._taken_over = False
        try:
            self.manager.start_quorum()
            weight = 0.0 if self._taken_over else self._unsent
            change = torch.cat([self.outer.weights - flatten(self.parameters), *map(torch.flatten, self._buffers)])
            sent = torch.cat([change.cpu() * weight, torch.tensor([weight])])
            self.manager.allreduce(sent, reduce_op=dist.ReduceOp.SUM).wait()
            together = self.manager.should_commit()
        except (RuntimeError, TimeoutError) as problem:
            raise LostError(f"the lighthouse or the other replicas cannot be reached: {problem}") from problem
        if not together:
            print(f"replica {self.replica}: an exchange failed; its steps are sent with the next one", flush=True)
        elif float(sent[-1]) > 0:
            mean = (sent[:-1] / sent[-1]).to(self.device)
            write_back(self.outer.step(mean[: len(self.outer.weights)]), self.parameters)
            write_back(mean[len(self.outer.weights) :], self._buffers)
        if together:
            self._unsent = 0.0
        if self.communication is not None:
            self.communication.append((start, self.clock.mark()))

    def handed_over(self) -> dict[str, Any]:
        """Return what a replica that comes needs."""
        return {
            "weights": self.outer.weights,
            "momentum": self.outer.momentum_buffer,
            "buffers": [buffer.clone() for buffer in self._buffers],
            "step": self._done,
        }

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on from what another replica handed over; the own inner optimizer stays as it is."""
        self.outer.weights.copy_(state["weights"])
        self.outer.momentum_buffer.copy_(state["momentum"])
        write_back(self.outer.weights, self.parameters)
        for own, theirs in zip(self._buffers, state["buffers"], strict=True):
            own.copy_(theirs)
        self._done, self._taken_over, self._unsent = int(state["step"]), True, 0.0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs beyond the model."""
        outer = {"weights": self.outer.weights, "momentum": self.outer.momentum_buffer}
        return super().state() | {"outer": outer, "meetings": self.manager.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` returned."""
        super().load_state(state)
        self.outer.weights.copy_(state["outer"]["weights"])
        self.outer.momentum_buffer.copy_(state["outer"]["momentum"])
        self.manager.load_state_dict(state["meetings"])
