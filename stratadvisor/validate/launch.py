"""Start a bundle's own launcher, watch it, and end it with everything it started.

Output goes to a file, so that a full pipe never blocks a rank. The launcher gets its own session: its ranks are ended
with it, on success, failure, hang and Ctrl-C alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from stratadvisor.validate import strays

POLL_SECONDS = 0.25
GRACE_SECONDS = 15.0
ABORT_SECONDS = 5.0
_STATES = {
    psutil.STATUS_STOPPED: "is stopped (SIGSTOP, or a job control of the shell)",
    psutil.STATUS_TRACING_STOP: "is stopped by a debugger",
    psutil.STATUS_DISK_SLEEP: "waits inside the kernel, for a disk, a network file system or a driver",
}
_STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "NNODES")
"""Variables of an outer launcher: a bundle started inside one must not join that job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up."""

    total_seconds: float = 1800.0
    stall_seconds: float = 300.0
    """Without a new line of output or metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the launcher ended."""

    how: Literal["exit", "stalled", "time_limit", "interrupted"]
    exit_code: int | None
    wall_seconds: float
    peak_tree_bytes: int
    """Largest resident memory seen over the launcher and all it started."""
    cgroup_oom_kills: int
    """Kills by the memory cgroup during the run."""
    halted: tuple[str, ...] = ()
    """Ranks of a stalled run that the system does not let run, each in words; seen before they were ended."""


def launch_environment(run_directory: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a launcher: this interpreter first on PATH, no variables of an outer launcher."""
    environment = {k: v for k, v in os.environ.items() if k not in _STALE}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    environment.update(
        PYTHON=sys.executable,
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        STRATADVISOR_RUN_DIR=str(run_directory),
    )
    environment.update(extra)
    return environment


def run_launcher(
    command: list[str],
    *,
    directory: Path,
    run_directory: Path,
    log_path: Path,
    watch: Path,
    limits: Limits,
    environment: Mapping[str, str],
    on_progress: Callable[[], None] | None = None,
) -> Ended:
    """Run ``command`` in ``directory`` until it ends or a limit is reached; nothing it started survives.

    It is asked to end when this process is killed.
    """
    kills_before = oom_kills()
    started = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=launch_environment(run_directory, environment),
            start_new_session=True,
            preexec_fn=strays.ask_to_end_with_parent,  # noqa: PLW1509 - no threads run here; it only calls prctl
        )
        how, peak, halted = _watch(process, started, (log_path, watch), limits, on_progress)
    strays.end(run_directory)
    code = process.poll()
    return Ended(
        how=how,
        exit_code=code,
        wall_seconds=time.monotonic() - started,
        peak_tree_bytes=peak,
        cgroup_oom_kills=max(0, oom_kills() - kills_before),
        halted=halted,
    )


def _watch(
    process: subprocess.Popen[bytes],
    started: float,
    signs_of_life: tuple[Path, ...],
    limits: Limits,
    on_progress: Callable[[], None] | None,
) -> tuple[Literal["exit", "stalled", "time_limit", "interrupted"], int, tuple[str, ...]]:
    how: Literal["exit", "stalled", "time_limit", "interrupted"] = "exit"
    halted: tuple[str, ...] = ()
    sizes, last_change, peak = _sizes(signs_of_life), started, 0
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            peak = max(peak, _tree_bytes(process.pid))
            now, current = time.monotonic(), _sizes(signs_of_life)
            if current != sizes:
                sizes, last_change = current, now
                if on_progress is not None:
                    on_progress()
            if now - last_change > limits.stall_seconds:
                how = "stalled"
                halted = _halted(process.pid)
                break
            if now - started > limits.total_seconds:
                how = "time_limit"
                break
    except KeyboardInterrupt:
        how = "interrupted"
    finally:
        # also after a clean end: a rank may have outlived its launcher
        _end(process, abort_first=how == "stalled")
    return how, peak, halted


def _sizes(paths: tuple[Path, ...]) -> tuple[int, ...]:
    found = []
    for path in paths:
        try:
            found.append(path.stat().st_size)
        except OSError:
            found.append(-1)
    return tuple(found)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _tree_bytes(pid: int) -> int:
    total = 0
    for member in _tree(pid):
        with contextlib.suppress(psutil.Error):
            total += int(member.memory_info().rss)
    return total


def _end(process: subprocess.Popen[bytes], *, abort_first: bool) -> None:
    """End the launcher's whole session, gently first; a stalled one is asked for its stacks (SIGABRT) before that."""
    members = _tree(process.pid)
    if abort_first:
        for member in members[1:]:
            with contextlib.suppress(psutil.Error):
                if "python" in member.name():
                    member.send_signal(signal.SIGABRT)
        psutil.wait_procs(members[1:], timeout=ABORT_SECONDS)
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    for member in members[1:]:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(members[1:], timeout=GRACE_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _halted(pid: int) -> tuple[str, ...]:
    """Return which ranks are stopped or wait inside the kernel, in words."""
    found = []
    for member in _tree(pid):
        with contextlib.suppress(psutil.Error):
            state = _STATES.get(member.status())
            rank = member.environ().get("RANK") if state is not None else None
            if rank is not None:
                found.append(f"rank {rank} {state}")
    return tuple(found)


def oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for memory in this process's group (cgroup v2 or v1) so far.

    Where the group's own folder is not mounted (a container), the root of what is mounted stands for it.
    """
    groups = {"memory": "/", "": "/"}
    with contextlib.suppress(OSError, ValueError):  # a line of another form ends the reading, not the run
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), group))
    v1, v2 = root / "sys/fs/cgroup/memory", root / "sys/fs/cgroup"
    for path in (
        v2 / groups[""].lstrip("/") / "memory.events",
        v1 / groups["memory"].lstrip("/") / "memory.oom_control",
        v2 / "memory.events",
        v1 / "memory.oom_control",
    ):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0
