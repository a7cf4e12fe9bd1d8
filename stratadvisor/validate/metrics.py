"""Read the metrics.jsonl of a run; a line still being written is ignored."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_LOG_BYTES = 512 * 1024 * 1024


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
    try:
        if path.stat().st_size > MAX_LOG_BYTES:
            return metrics
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return metrics
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("event") == "start":
            metrics = RunMetrics(start=event)
        elif event.get("event") == "step" and isinstance(event.get("step"), int):
            metrics.steps.append(event)
        elif event.get("event") == "end":
            metrics.end = event
        elif event.get("event") == "loader":
            metrics.loader = event
        elif event.get("event") == "change":
            metrics.changes.append(event)
    return metrics


def number(event: dict[str, Any], key: str) -> float | None:
    """Return a finite number of an event, else None."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def column(steps: list[dict[str, Any]], key: str) -> list[float]:
    """Return the known numbers of a key over steps."""
    return [v for s in steps if (v := number(s, key)) is not None]
