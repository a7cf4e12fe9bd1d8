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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
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
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STALE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "NNODES")
"""Variables of an outer launcher: a bundle started inside one must not join that job."""


SHORTEST_STALL_SECONDS = 300.0
"""Loading torch from a cold network file system takes minutes, without a word."""
STALL_STEPS = 5.0
"""A sign of life comes with every step; predictions are wrong by less than this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to give up."""

    total_seconds: float = 1800.0
    stall_seconds: float | None = None
    """Without a new line of output or metrics; None: as long as a few steps may take."""

    def silence_seconds(self, step_seconds: float) -> float:
        """Return how long a run may be silent whose steps take at most about ``step_seconds``."""
        if self.stall_seconds is not None:
            return self.stall_seconds
        return max(SHORTEST_STALL_SECONDS, STALL_STEPS * step_seconds)


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
    run = _Run(limits, (log_path, watch), on_progress, started)
    try:
        with log_path.open("wb") as log, _uninterrupted() as mask:
            run.process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=launch_environment(run_directory, environment),
                start_new_session=True,
                preexec_fn=partial(strays.prepare_child, mask),  # noqa: PLW1509 - it makes two system calls
            )
        run.wait()
    except KeyboardInterrupt:
        run.how = "interrupted"
    finally:
        run.end()
    try:
        strays.end(run_directory)
    except KeyboardInterrupt:  # one more of those: it is done now, and nothing is left that could wait
        run.how = "interrupted"
        strays.end(run_directory)
    return Ended(
        how=run.how,
        exit_code=run.process.poll() if run.process is not None else None,
        wall_seconds=time.monotonic() - started,
        peak_tree_bytes=run.peak,
        cgroup_oom_kills=max(0, oom_kills() - kills_before),
        halted=run.halted,
    )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[set[int]]:
    """Hold back signals that end this process, so that none comes between a child's start and its name being known."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield {int(number) for number in mask}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@dataclass
class _Run:
    """A launcher while it is watched."""

    limits: Limits
    signs_of_life: tuple[Path, ...]
    on_progress: Callable[[], None] | None
    started: float
    process: subprocess.Popen[bytes] | None = None
    how: Literal["exit", "stalled", "time_limit", "interrupted"] = "exit"
    peak: int = 0
    halted: tuple[str, ...] = ()

    def wait(self) -> None:
        """Return when the launcher has ended or a limit is reached."""
        assert self.process is not None
        sizes, last_change = _sizes(self.signs_of_life), self.started
        while self.process.poll() is None:
            time.sleep(POLL_SECONDS)
            self.peak = max(self.peak, _tree_bytes(self.process.pid))
            now, current = time.monotonic(), _sizes(self.signs_of_life)
            if current != sizes:
                sizes, last_change = current, now
                if self.on_progress is not None:
                    self.on_progress()
            if now - last_change > self.limits.silence_seconds(0.0):
                self.how = "stalled"
                self.halted = _halted(self.process.pid)
                break
            if now - self.started > self.limits.total_seconds:
                self.how = "time_limit"
                break

    def end(self) -> None:
        """End what is left of its tree, also after a clean end: a rank may have outlived its launcher."""
        if self.process is None:
            return
        try:
            _end(self.process, abort_first=self.how == "stalled")
        except KeyboardInterrupt:  # a second one: without grace then
            self.how = "interrupted"
            _signal_group(self.process.pid, signal.SIGKILL)


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
