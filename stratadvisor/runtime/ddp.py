"""Replicated data parallelism with torch's DDP; shares of the batch may differ between ranks."""
# No postponed annotations here: DDP checks the types that a hook declares.

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .clock import Mark
from .compression import CAST_TYPES, SignCompressor, sum_reduce
from .config import ConfigError
from .engine import Engine

POWERSGD_RANK, POWERSGD_START_STEP = 2, 100
"""Columns of the factors, and dense steps first where the length of the run is not known (arXiv:1905.13727 uses 1 to
4; torch's documentation advises to start at about a tenth of the steps)."""


class DDPEngine(Engine):
    """Gradients are added up while backward runs; the hook notes when the last bucket was ready.

    Everything after that moment is communication that nothing hides.
    """

    group: Any = None
    """Process group of the gradients; None: all ranks."""

    def expect(self, tokens: int) -> None:
        """Set the tokens of a step: the hook adds up over ranks, which spares a pass over all gradients."""
        self.loss_factor = 1 / tokens

    def prepare(self, model: nn.Module) -> nn.Module:
        """Wrap the model."""
        compression = self.config.compression
        if compression == "sign" and self.config.optimizer != "sgd":
            raise ConfigError(
                f"compression sign needs the optimizer sgd, not {self.config.optimizer}:"
                " one-bit gradients break Adam's estimate of the variance"
            )
        if compression == "int8":
            raise ConfigError("compression int8 is for diloco: ddp takes none, bf16, fp16, sign or powersgd")
        self.communication = []
        self._last_bucket_ready: Mark | None = None
        wrapped = DistributedDataParallel(
            self.on_device(model),
            process_group=self.group,
            gradient_as_bucket_view=True,
        )
        self._signs = SignCompressor(self.group) if compression == "sign" else None
        self._low_rank = self._powersgd() if compression == "powersgd" else None
        wrapped.register_comm_hook(None, self._reduce)
        return wrapped

    def _powersgd(self) -> PowerSGDState:
        """Return the state of torch's PowerSGD hook: low rank after a dense warm-up, which a resumed run repeats."""
        settings = self.config.settings
        start = int(settings.get("powersgd_start_step", self.config.total_steps // 10 or POWERSGD_START_STEP))
        return PowerSGDState(
            process_group=self.group,
            matrix_approximation_rank=int(settings.get("powersgd_rank", POWERSGD_RANK)),
            start_powerSGD_iter=max(2, start),
        )

    def _reduce(self, _: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Add up one bucket (the communication hook)."""
        if bucket.is_last():
            self._last_bucket_ready = self.clock.mark()
        self.before_sending(bucket.buffer())
        if self._low_rank is not None:
            ranks = dist.get_world_size(self.group)  # torch's hook returns the mean
            mean = powerSGD_hook(self._low_rank, bucket)
            return mean.then(lambda future: future.value().mul_(ranks))
        if self._signs is not None:
            return self._signs.reduce(bucket.index(), bucket.buffer())
        return sum_reduce(bucket.buffer(), self.group, CAST_TYPES[self.config.compression])

    def before_sending(self, gradients: torch.Tensor) -> None:
        """Look at this rank's own gradients before they are added to the others'."""

    @contextmanager
    def micro_batch(self, *, last: bool) -> Iterator[None]:
        """Communicate in the last micro-batch only; no_sync must surround forward and backward."""
        if not last:
            with self.model.no_sync():  # type: ignore[operator]
                yield
            return
        yield
        if self._last_bucket_ready is not None and self.communication is not None:
            self.communication.append((self._last_bucket_ready, self.clock.mark()))
            self._last_bucket_ready = None

    def plain_model(self) -> nn.Module:
        """Return the model without DDP."""
        module: nn.Module = self.model.module  # type: ignore[assignment]
        return module
