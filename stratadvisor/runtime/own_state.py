"""What only one worker of a parameter server has, its optimizer when it takes local steps: kept by the worker itself.

The server's checkpoint holds what it knows. A worker writes its part down before it pushes a change that may be in the
next checkpoint, under the number of its steps; after a restart the server says how many of them count.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .integrity import damage, write_tensors

KEPT = 4
"""States kept; more than checkpoints, since not every state is in one."""


class OwnState:
    """Folders beside the server's checkpoints on the worker's node, one for each state."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._prefix, self._rank = folder, f"worker-{rank}-", rank

    def _states(self) -> list[tuple[int, Path]]:
        """Return (steps, folder) of what there is, oldest first."""
        found = [(path.name.removeprefix(self._prefix), path) for path in self._folder.glob(f"{self._prefix}*")]
        return sorted((int(steps), path) for steps, path in found if steps.isdigit())

    def keep(self, steps: int, state: dict[str, Any]) -> None:
        """Write the state after so many steps; a full disk costs the state, not the run."""
        place = self._folder / f"{self._prefix}{steps:08d}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_tensors(place / "state.pt", state)
        except OSError as problem:
            print(f"warning: the optimizer of worker {self._rank} cannot be saved: {problem.strerror}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            return
        for _, old in self._states()[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def take_back(self, steps: int, load: Callable[[dict[str, Any]], None]) -> None:
        """Read the state after so many steps, else the newest before them; say so where it is not the right one.

        At step 0 a run begins: what an earlier one left here is removed.
        """
        for at, place in reversed(self._states()):
            if steps == 0:
                shutil.rmtree(place, ignore_errors=True)
            elif at <= steps:
                problem = damage(place, {"state.pt": _size(place / "state.pt")})
                try:
                    if not problem:
                        load(torch.load(place / "state.pt", map_location="cpu", weights_only=True))
                except (RuntimeError, KeyError, ValueError, OSError, EOFError, pickle.UnpicklingError) as caught:
                    problem = " ".join(str(caught).split())[:200]
                if problem:
                    print(f"{place} cannot be used ({problem}): looking for an older one", flush=True)
                    continue
                if at < steps:
                    print(f"worker {self._rank}: its optimizer is that of step {at}, not {steps}", flush=True)
                return
        if steps:
            print(f"worker {self._rank}: its optimizer begins anew at step {steps}", flush=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1
