"""Read the metrics.jsonl of a run; a line still being written is ignored."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_LOG_BYTES = 512 * 1024 * 1024
MAX_STEP = 2**53
"""More is no count of steps."""


@dataclass(slots=True)
class RunMetrics:
    """Events of one run in order."""

    start: dict[str, Any] | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None
    loader: dict[str, Any] | None = None
    """What the program found of its loading of data."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """How an adaptive program left its plan."""

    @property
    def last_step(self) -> int:
        """Number of optimizer steps done."""
        return int(self.steps[-1]["step"]) if self.steps else 0


def read_metrics(path: Path) -> RunMetrics:
    """Return the events in a file that may be missing, short or half-written."""
    metrics = RunMetrics()
    for line in _text(path).splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "start":
            metrics = RunMetrics(start=event)
        elif event.get("event") == "step" and _is_count(event.get("step")):
            metrics.steps.append(event)
        elif event.get("event") == "end":
            metrics.end = event
        elif event.get("event") == "loader":
            metrics.loader = event
        elif event.get("event") == "change":
            metrics.changes.append(event)
    return metrics


def _text(path: Path) -> str:
    """Return what a regular file of a sensible size holds, else nothing: a pipe or a device in its place never ends."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_LOG_BYTES:
                return ""
            return stream.read(MAX_LOG_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_STEP


def number(event: dict[str, Any], key: str) -> float | None:
    """Return a finite number of an event, else None."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return found if math.isfinite(found) else None


def column(steps: list[dict[str, Any]], key: str) -> list[float]:
    """Return the known numbers of a key over steps."""
    return [v for s in steps if (v := number(s, key)) is not None]
