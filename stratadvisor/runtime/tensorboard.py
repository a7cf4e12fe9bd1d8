"""TensorBoard event files beside ``metrics.jsonl``, where the package tensorboard is installed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
"""Inside the run directory: ``tensorboard --logdir run/tensorboard``."""
INTERVAL_SECONDS = 1.0
"""A point at most this often: metrics.jsonl has every step."""
TAGS = {
    "loss": "training/loss",
    "learning_rate": "training/learning_rate",
    "tokens": "training/tokens",
    "step_seconds": "seconds/step",
    "compute_seconds": "seconds/compute",
    "communication_seconds": "seconds/communication",
    "data_wait_seconds": "seconds/data_wait",
    "straggler_spread_seconds": "seconds/straggler_spread",
    "peak_device_bytes": "bytes/peak_device",
    "peak_allocated_bytes": "bytes/peak_allocated",
    "device_energy_joules": "joules/devices",
    "host_energy_joules": "joules/hosts",
}
"""Key of a step event -> name of its curve."""


class Curves:
    """Writes step events as scalars; does nothing where tensorboard cannot be imported."""

    def __init__(self, run_directory: Path) -> None:
        self._due = 0.0
        self._newest: dict[str, Any] | None = None
        self.problem = ""
        """Why nothing is written."""
        self._writer: Any = None
        try:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(run_directory / FOLDER), flush_secs=10)
        except (ImportError, AttributeError) as problem:  # torch reads tensorboard's version in its own way
            self.problem = f"tensorboard is not installed ({problem})"
        except OSError as problem:
            self.problem = f"{run_directory / FOLDER} cannot be written: {problem.strerror}"

    def step(self, event: dict[str, Any]) -> None:
        """Write a step event, unless the last one was written a moment ago."""
        if self._writer is None:
            return
        now = time.perf_counter()
        if now < self._due:
            self._newest = event
            return
        self._due, self._newest = now + INTERVAL_SECONDS, None
        self._write(event)

    def note(self, step: int, text: str) -> None:
        """Write a sentence about a step."""
        if self._writer is not None:
            self._writer.add_text("changes", text, step)

    def close(self) -> None:
        """Write the last event and close the file."""
        if self._writer is not None:
            if self._newest is not None:
                self._write(self._newest)
            self._writer.close()
            self._writer = None

    def _write(self, event: dict[str, Any]) -> None:
        for key, tag in TAGS.items():
            if event.get(key) is not None:
                self._writer.add_scalar(tag, event[key], event["step"])
