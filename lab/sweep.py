"""Take clusters away: one's own at the end, and those whose owner died."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from lab.cpu_group import controller, group_pids, remove_group
from lab.errors import LabError
from lab.naming import PREFIX, alive, cluster_of
from lab.shell import call, namespaces, pids

STATE = Path("/run")
"""Where one file for each cluster lies, with what it was declared as."""
_END_SECONDS = 5.0


def state_file(name: str) -> Path:
    """Return the file of a cluster."""
    return STATE / f"{name}.json"


def state_files() -> list[Path]:
    """Return the files of all clusters."""
    return sorted(path for path in STATE.glob(f"{PREFIX}-*.json") if cluster_of(path.name))


def groups() -> list[Path]:
    """Return the control groups of all clusters."""
    where = controller()
    if where is None:
        return []
    return sorted(path for path in where.folder.iterdir() if path.is_dir() and cluster_of(path.name))


def leavings() -> tuple[str, ...]:
    """Return the names of the clusters of which anything is left whose owner is dead."""
    found = [cluster_of(name) for name in namespaces()]
    found += [cluster_of(path.name) for path in (*groups(), *state_files())]
    return tuple(sorted({name for name in found if name is not None and not alive(name)}))


def sweep() -> tuple[str, ...]:
    """Remove what dead owners left and return the names of their clusters.

    Raises:
        LabError: something cannot be removed.

    """
    names = leavings()
    for name in names:
        remove(name)
    return names


def _kill(name: str, spaces: list[str], own_groups: list[Path]) -> None:
    """End every process of a cluster, and see that they are gone (or no more than remains)."""
    end = time.monotonic() + _END_SECONDS
    while True:
        running = {pid for space in spaces for pid in pids(space)} | {p for g in own_groups for p in group_pids(g)}
        running -= {os.getpid()}
        running = {pid for pid in running if not _dead(pid)}
        if not running:
            return
        if time.monotonic() > end:
            raise LabError(f"processes of {name} do not end: {', '.join(map(str, sorted(running)))}")
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


def remove(name: str) -> None:
    """Remove a cluster: its processes, namespaces, control groups and file; what is already gone is no fault.

    Raises:
        LabError: something cannot be removed; the rest is.

    """
    spaces = [space for space in namespaces() if cluster_of(space) == name]
    own_groups = [path for path in groups() if cluster_of(path.name) == name]
    problems: list[str] = []
    try:
        _kill(name, spaces, own_groups)
    except LabError as problem:
        problems.append(str(problem))
    for space in spaces:
        try:
            call("ip", "netns", "delete", space)
        except LabError as problem:
            if space in namespaces():  # another sweep may have been first
                problems.append(str(problem))
    for path in own_groups:
        try:
            remove_group(path)
        except LabError as problem:
            problems.append(str(problem))
    state_file(name).unlink(missing_ok=True)
    if problems:
        raise LabError("; ".join(problems))
