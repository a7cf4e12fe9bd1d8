"""Checkpoints: complete or absent, the last two kept, and the position of the data with them."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .config import TrainConfig, TrainingError
from .distributed import Context

KEPT = 2
META = "meta.json"


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    step: int = 0
    samples: int = 0
    """Samples that all ranks together have taken."""


def write_tensors(path: Path, state: dict[str, Any]) -> None:
    """Write a file of tensors; several nodes on one file system may write the same content at once."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    torch.save(state, temporary)
    temporary.replace(path)


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [p for p in folder.glob("step-*") if (p / META).is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


class Checkpoints:
    """The checkpoints of a run directory. Nodes without a common file system each keep their own part."""

    def __init__(self, run_directory: Path, config: TrainConfig, context: Context) -> None:
        self.folder = run_directory / "checkpoints"
        self._config, self._context = config, context

    def _clean(self, paths: list[Path]) -> None:
        if self._context.rank == self._context.node_ranks[0]:
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)

    def save(self, position: Position, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint on every rank together: all files into a hidden directory, which then gets its name.

        Raises:
            TrainingError: the disk is full or the directory not writable.

        """
        final = self.folder / f"step-{position.step:08d}"
        hidden = self.folder / f".writing-{final.name}"
        first_here = self._context.rank == self._context.node_ranks[0]
        try:
            if first_here:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._clean([p for p in self.folder.glob(".writing-*") if p != hidden])
                hidden.mkdir(exist_ok=True)
            self._context.barrier()
            write(hidden)
            if first_here:
                meta = {
                    "step": position.step,
                    "samples": position.samples,
                    "strategy": self._config.strategy,
                    "world_size": self._context.world_size,
                }
                partial = hidden / f".{META}.{uuid.uuid4().hex}"
                partial.write_text(json.dumps(meta) + "\n", encoding="utf-8")
                partial.replace(hidden / META)
            self._context.barrier()
            if first_here and hidden.exists():
                try:
                    hidden.rename(final)
                except OSError:
                    # On a common file system another node was faster; an older checkpoint of this step gives way.
                    if hidden.exists():
                        shutil.rmtree(final, ignore_errors=True)
                        hidden.rename(final)
        except OSError as problem:
            raise TrainingError(f"the checkpoint {final} cannot be written: {problem.strerror or problem}") from problem
        self._context.barrier()
        self._clean(_complete(self.folder)[:-KEPT])
        return final

    def latest(self) -> tuple[Path, Position] | None:
        """Return the newest complete checkpoint.

        Raises:
            TrainingError: it belongs to another strategy or number of processes.

        """
        found = _complete(self.folder)
        if not found:
            return None
        path = found[-1]
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        if meta["strategy"] != self._config.strategy:
            raise TrainingError(f"{path} was written by the strategy {meta['strategy']}, not {self._config.strategy}")
        fixed = self._config.engine in ("diloco", "hierarchical", "deepspeed", "async_sgd")
        if fixed and meta["world_size"] != self._context.world_size:
            raise TrainingError(
                f"{path} was written by {meta['world_size']} processes and {self._config.engine} needs as many again,"
                f" not {self._context.world_size}"
            )
        return path, Position(step=meta["step"], samples=meta["samples"])


def run_directory(choice: Path | None, bundle: Path) -> Path:
    """Return the directory of metrics and checkpoints: the option, else STRATADVISOR_RUN_DIR, else run/ in the bundle.

    Raises:
        TrainingError: it cannot be made.

    """
    path = choice or Path(os.environ.get("STRATADVISOR_RUN_DIR") or bundle / "run")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise TrainingError(f"the run directory {path} cannot be made: {problem.strerror}") from None
    return path
