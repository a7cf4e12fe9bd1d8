"""Data parallelism that changes while it runs: unequal shares, larger batches, local steps, and back."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .adaptive import Change, Controller, Limits, NoiseScale, Regime, Window
from .config import ConfigError, TrainConfig
from .ddp import DDPEngine
from .diloco import DiLoCoEngine
from .distributed import Context
from .engine import Engine
from .local import flatten, write_back
from .optimizer import local_gradients
from .telemetry import FIELDS

MIN_WINDOW_STEPS = 3
NOISE_EVERY = 4
"""Steps between two looks at the gradient noise: each costs one pass over the gradients."""
COLUMNS = {name: index for index, name in enumerate(FIELDS)}


class AdaptiveEngine(DiLoCoEngine, DDPEngine):
    """DDP while ranks meet in every step; else local steps and averaging, as DiLoCo does.

    Averages of weights are plain (outer learning rate 1, no momentum) unless the settings say otherwise: a change of
    regime then moves nothing. Ranks are equal after every exchange; going back to averaging gradients, the states of
    their optimizers are averaged too, so that they stay equal.
    """

    interval = 0
    counts_samples = True
    report_seconds = 0.3  # what is seen late is changed late

    def __init__(self, config: TrainConfig, context: Context, model: nn.Module) -> None:
        for key in ("fragments", "delay_steps", "sync_warmup_fraction"):
            if config.settings.get(key):
                raise ConfigError(f"settings.{key} is not for the engine adaptive: it decides itself when ranks meet")
        if config.optimizer == "adamw8bit":
            raise ConfigError("the engine adaptive averages states of optimizers, which adamw8bit quantizes: use adamw")
        if config.mode == "local_sgd":
            self.interval = max(2, config.sync_interval_steps)
        self._own_square: Any = None
        self._noise_sums = [0.0, 0.0, 0.0]
        super().__init__(config, context, model)
        if "outer_learning_rate" not in config.settings:
            self.outer.learning_rate = 1.0
        if "outer_momentum" not in config.settings:
            self.outer.momentum = 0.0
        regime = Regime(
            shares=context.batch_of_rank, interval_steps=self.interval, loader_workers=config.data_loader_workers
        )
        spare = (os.cpu_count() or 1) // max(1, len(context.node_ranks)) - 1
        self.controller = Controller(regime, Limits(max_loader_workers=max(config.data_loader_workers, spare)))
        self.noise = NoiseScale()
        self._tables: list[torch.Tensor] = []

    @property
    def in_lockstep(self) -> bool:
        """Never: gradients are averaged by DDP, not by the base of local engines."""
        return False

    @property
    def exchange_interval(self) -> int:  # type: ignore[override]
        """Steps between meetings; 0 while gradients are averaged."""
        return self.interval

    def replica_ranks(self) -> list[int]:
        """Return the ranks whose gradients are averaged: all, or this one alone."""
        return [self.context.rank] if self.interval else list(range(self.context.world_size))

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Communicate in the last micro-batch, and in none between meetings."""
        with super().micro_batch(last=last and not self.interval):
            yield

    def before_sending(self, gradients: torch.Tensor) -> None:
        """Note the size of this rank's own gradient."""
        if self.step % NOISE_EVERY == 0:
            square = gradients.float().square().sum()
            self._own_square = square if self._own_square is None else self._own_square + square

    def update(self, learning_rate: float, tokens: int) -> None:
        """Clip and step; between meetings on this rank's own gradient."""
        if self._own_square is not None:
            factor = self.scaler.scale
            mean = torch.stack(torch._foreach_norm(local_gradients(self.parameters))).norm()  # noqa: SLF001
            own = self._own_square / (self.loss_factor * max(1, tokens) * factor) ** 2
            sums = self._noise_sums
            self._noise_sums = [sums[0] + 1, sums[1] + float(own), sums[2] + float((mean / factor).square())]
            self._own_square = None
        Engine.update(self, learning_rate, tokens)

    def exchange(self, tokens: int) -> None:
        """Average the weights; all of it counts as waiting, also for ranks that come later."""
        start = self.clock.mark()
        super().exchange(tokens)
        self.communication = [(start, self.clock.mark())]

    def load(self, directory: Path) -> None:
        """Read a checkpoint; the regime begins anew with the plan's."""
        super().load(directory)
        if not self.interval:
            self._equal_optimizers()

    def _equal_optimizers(self) -> None:
        """Average the optimizers' states over ranks, which took different steps since they last were equal.

        Of the scales of fp16 losses the smallest: gradients are added up scaled.
        """
        own = getattr(self.optimizer, "optimizers", [self.optimizer])
        states = [s for o in own for p in self.parameters for s in o.state.get(p, {}).values()]
        # single numbers count steps, which all ranks did alike
        moments = [s for s in states if torch.is_tensor(s) and s.is_floating_point() and s.numel() > 1]
        if moments:
            flat = flatten(moments)
            dist.all_reduce(flat, group=self._exchange_group)
            write_back(flat / self.context.world_size, moments)
        scales = self.context.gather(torch.tensor([self.scaler.scale], dtype=torch.float64))
        self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": float(scales.min()), "quiet_steps": 0})

    def after_report(self, loop: Any, tables: torch.Tensor) -> None:
        """Look at a window of steps and go on in another way where it says so."""
        self._tables.append(tables)
        if not self.interval and sum(table.shape[1] for table in self._tables) < MIN_WINDOW_STEPS:
            return
        tables, self._tables = torch.cat(self._tables, dim=1), []
        self._look_at_noise()
        change = self.controller.observe(window(tables, local=bool(self.interval), critical=self.noise.samples))
        if change is not None:
            loop.flush()
            self._go_on(loop, change)

    def _look_at_noise(self) -> None:
        """Share the sums of squared norms; every rank measured in the same steps."""
        count, own, mean = self._noise_sums
        if count:
            squares = self.context.gather(torch.tensor([own / count, mean / count], dtype=torch.float64))
            self.noise.add(squares[:, 0].tolist(), self.context.batch_of_rank, float(squares[0, 1]))
            self._noise_sums = [0.0, 0.0, 0.0]

    def _go_on(self, loop: Any, change: Change) -> None:
        before, after = self.interval, change.regime
        self.interval = after.interval_steps
        if before and not self.interval:
            self._equal_optimizers()
        elif self.interval and not before:
            self.outer.weights.copy_(flatten(self.parameters))
            self.outer.momentum_buffer.zero_()
        power = 1.0 if self.config.optimizer == "sgd" else 0.5  # arXiv:1706.02677; for Adam arXiv:2205.10287
        self.rate_factor = float(after.accumulation**power)
        loop.rearrange(after.shares, after.loader_workers)
        self.expect(self.config.sequence_length * sum(after.shares[r] for r in self.replica_ranks()))
        loop.telemetry.change(loop.position.step, change.kind, change.reason)
        dist.barrier(group=self.context.control)  # what follows is timed: nobody waits for another's rearranging


def window(tables: torch.Tensor, *, local: bool, critical: float | None) -> Window:
    """Return what the rows (ranks x steps x FIELDS; NaN where a rank did fewer steps) say of a step."""
    seconds, data, waits = (
        tables[:, :, COLUMNS[name]] for name in ("step_seconds", "data_wait_seconds", "communication_seconds")
    )
    waits = torch.where(torch.isnan(seconds), math.nan, waits.nan_to_num(0.0))
    own = (seconds - data - waits).clamp(min=0.0)
    exchange = waits.nansum(dim=1).min() if local else waits.min(dim=0).values.median()
    return Window(
        own_seconds=tuple(own.nanmedian(dim=1).values.tolist()),
        communication_seconds=float(exchange),
        data_wait_seconds=float(data.nanmedian(dim=1).values.max()),
        critical_samples=critical,
    )
