"""Checkpoints: complete or absent, checked before use, the last two kept, and the position of the data in them."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .config import TrainConfig, TrainingError
from .distributed import Context
from .integrity import damage, sizes

KEPT = 2
META = "meta.json"
DAMAGED = "damaged-"
"""A checkpoint that is not what was written keeps its place under this prefix, for whoever wants to look at it."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written on some rank; raised on all of them, and earlier ones are untouched."""


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    step: int = 0
    samples: int = 0
    """Samples that all ranks together have taken."""


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    found = [p for p in folder.glob("step-*") if p.name[5:].isdigit() and (p / META).is_file()]
    return sorted(found, key=_step)


class Checkpoints:
    """The checkpoints of a run directory. Nodes without a common file system each keep their own part."""

    def __init__(self, run_directory: Path, config: TrainConfig, context: Context) -> None:
        self.folder = run_directory / "checkpoints"
        self._config, self._context = config, context
        self._first_here = context.rank == context.node_ranks[0]

    def _clean(self, paths: list[Path]) -> None:
        if self._first_here:
            for path in paths:
                shutil.rmtree(path, ignore_errors=True)

    def save(self, position: Position, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint on every rank together: all files into a hidden directory, which then gets its name.

        Raises:
            CheckpointError: on every rank when any of them could not write: the disk is full, not writable.

        """
        final = self.folder / f"step-{position.step:08d}"
        hidden = self.folder / f".writing-{final.name}"
        actions: tuple[Callable[[], None], ...] = (
            lambda: self._begin(hidden),
            lambda: write(hidden),
            lambda: self._end(position, hidden, final),
        )
        for action in actions:
            problem = ""
            try:
                action()
            except OSError as caught:
                problem = caught.strerror or str(caught)
            problems = [text for text in self._context.gather_texts(problem) if text]
            if problems:
                self._clean([hidden])
                raise CheckpointError(f"the checkpoint {final} cannot be written: {problem or problems[0]}")
        self._clean(_complete(self.folder)[:-KEPT])
        return final

    def _begin(self, hidden: Path) -> None:
        if self._first_here:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean([p for p in self.folder.glob(".writing-*") if p != hidden])
            hidden.mkdir(exist_ok=True)

    def _end(self, position: Position, hidden: Path, final: Path) -> None:
        """Say what the checkpoint is and give it its name; the first rank of every node."""
        if not self._first_here:
            return
        try:
            files = {name: size for name, size in sizes(hidden).items() if META not in name}
            meta = {
                "step": position.step,
                "samples": position.samples,
                "strategy": self._config.strategy,
                "world_size": self._context.world_size,
                "files": files,
            }
            partial = hidden / f".{META}.{uuid.uuid4().hex}"
            partial.write_text(json.dumps(meta) + "\n", encoding="utf-8")
            partial.replace(hidden / META)
            hidden.rename(final)
        except OSError:
            if not hidden.exists() and (final / META).is_file():
                return  # on a common file system another node was faster
            if not (hidden / META).is_file() or not final.exists():
                raise
            self._replace(final, hidden)

    def _replace(self, final: Path, hidden: Path) -> None:
        """Put a checkpoint in the place of an older one of the same step, which is deleted last."""
        old = final.with_name(f".writing-old.{uuid.uuid4().hex}")
        final.rename(old)
        try:
            hidden.rename(final)
        except OSError:
            old.rename(final)  # what was moved away was the new one, which another node had put there
            return
        shutil.rmtree(old, ignore_errors=True)

    def begin_anew(self) -> None:
        """Move the checkpoints of an earlier run out of the way: by their numbers they would pass for newer ones."""
        if self._first_here and any(self.folder.glob("step-*")):
            number = 1
            while (old := self.folder.with_name(f"{self.folder.name}.{number}")).exists():
                number += 1
            try:
                self.folder.rename(old)
                print(f"the checkpoints of an earlier run are now in {old}", flush=True)
            except OSError as problem:
                if any(self.folder.glob("step-*")):  # else another node on the same file system did it
                    raise TrainingError(f"{self.folder} cannot be moved away: {problem.strerror}") from None
        self._context.barrier()

    def latest(self) -> tuple[Path, Position] | None:
        """Return the newest checkpoint that every rank has and that holds what was written; collective.

        Raises:
            TrainingError: it belongs to another strategy or number of processes, or all of them are damaged.

        """
        steps = {_step(path) for path in _complete(self.folder)}
        everywhere = [set(json.loads(text)) for text in self._context.gather_texts(json.dumps(sorted(steps)))]
        common = sorted(set.intersection(*everywhere), reverse=True)
        seen = ""
        for newer in steps - set(common):  # this rank has them, another one does not: a run ended while writing
            if not common or newer > common[0]:
                self._set_aside(self.folder / f"step-{newer:08d}", wait=False)
        self._context.barrier()
        for step in common:
            path = self.folder / f"step-{step:08d}"
            problems = [text for text in self._context.gather_texts(self._damage(path)) if text]
            if not problems:
                return path, self._position(path)
            seen = f"{path} is damaged ({problems[0]})"
            if self._context.rank == 0:
                print(f"{seen}: looking for an older one", flush=True)
            self._set_aside(path)
        if seen:
            raise TrainingError(
                f"{seen}, and there is no older one: put a copy back, or start without --resume to begin again"
            )
        return None

    def _damage(self, path: Path) -> str:
        here = self._context.node_ranks
        try:
            meta = json.loads((path / META).read_text(encoding="utf-8"))
            for key in ("step", "samples", "world_size"):
                int(meta[key])
            return damage(path, meta.get("files", {}), part=here.index(self._context.rank), parts=len(here))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            return f"{META} cannot be read: {problem}"

    def _set_aside(self, path: Path, *, wait: bool = True) -> None:
        if self._first_here:
            aside = path.with_name(DAMAGED + path.name)
            with suppress(OSError):  # another node on the same file system did it; or it cannot be moved, and stays
                path.rename(aside)
        if wait:
            self._context.barrier()

    def _position(self, path: Path) -> Position:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        if meta["strategy"] != self._config.strategy:
            raise TrainingError(f"{path} was written by the strategy {meta['strategy']}, not {self._config.strategy}")
        fixed = self._config.engine in ("diloco", "diloco_nodes", "hierarchical", "deepspeed", "async_sgd")
        if fixed and meta["world_size"] != self._context.world_size:
            raise TrainingError(
                f"{path} was written by {meta['world_size']} processes and {self._config.engine} needs as many again,"
                f" not {self._context.world_size}"
            )
        return Position(step=meta["step"], samples=meta["samples"])


def loaded(load: Callable[[Path], None], path: Path) -> None:
    """Load a checkpoint.

    Raises:
        TrainingError: it does not fit the model or the optimizer.

    """
    try:
        load(path)
    except (RuntimeError, KeyError, ValueError, OSError) as problem:
        reason = " ".join(str(problem).split())[:300]
        raise TrainingError(f"{path} does not fit this model and optimizer: {reason}") from problem


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
