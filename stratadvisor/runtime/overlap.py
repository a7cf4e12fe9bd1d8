"""When replicas exchange which part of their weights: launched from a snapshot, applied some steps later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .config import ConfigError


@dataclass(frozen=True)
class Piece:
    """A run of whole parameters that is exchanged at once, and when, in steps since the replicas last met."""

    first: int
    """Index of its first parameter."""
    last: int
    """One after its last."""
    start: int
    """Place of its first element in the vector of all parameters."""
    stop: int
    launch_step: int
    apply_step: int

    @property
    def elements(self) -> slice:
        """Its elements in the vector of all parameters."""
        return slice(self.start, self.stop)


def schedule(sizes: list[int], *, interval: int, pieces: int, delay: int) -> list[Piece]:
    """Divide parameters of ``sizes`` elements into runs of about equal size and spread their exchanges evenly.

    Piece f of F is applied after ``(f + 1) * interval / F`` steps, the last one when the replicas meet, and launched
    ``delay`` steps before; never two at a time (as in streaming DiLoCo, arXiv:2501.18512).

    Raises:
        ConfigError: the delay does not fit between two exchanges, or there are more pieces than steps or parameters.

    """
    if pieces > min(interval, len(sizes)):
        raise ConfigError(
            f"settings.fragments is {pieces}, but there are {interval} steps between exchanges"
            f" and {len(sizes)} parameters to divide"
        )
    ends = [interval * (f + 1) // pieces for f in range(pieces)]
    shortest = min(b - a for a, b in zip([0, *ends], ends, strict=False))
    if not 0 <= delay < shortest:
        raise ConfigError(
            f"settings.delay_steps is {delay}: it must be at least 0 and less than the {shortest} steps that one"
            f" exchange is after the other (sync_interval_steps {interval}, fragments {pieces})"
        )
    found: list[Piece] = []
    total, first, start = sum(sizes), 0, 0
    for f, end in enumerate(ends):
        last, stop = first + 1, start + sizes[first]
        most = len(sizes) - (pieces - 1 - f)  # the later pieces need one parameter each
        while last < most and (f == pieces - 1 or (stop + sizes[last] / 2) * pieces <= total * (f + 1)):
            stop += sizes[last]
            last += 1
        found.append(Piece(first, last, start, stop, end - delay, end))
        first, start = last, stop
    return found


@dataclass(frozen=True)
class Flight:
    """An exchange under way."""

    piece: Piece
    snapshot: torch.Tensor
    """The piece's weights when it was launched, flat."""
    finish: Callable[[], torch.Tensor]
    """Waits for the mean over replicas."""
