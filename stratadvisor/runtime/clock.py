"""Marks in time that do not stall a GPU: an event there, the wall clock elsewhere."""

from __future__ import annotations

import time
from typing import Any

import torch

Mark = Any
"""A float (seconds of the wall clock) or a CUDA event."""


class Clock:
    """Makes marks on a device's time line and measures between them."""

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"

    def mark(self) -> Mark:
        """Return a mark at the end of the work given to the device so far."""
        if not self._events:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the time between two marks; waits until the device has passed the later one."""
        if not self._events:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
