"""Start a command under a fault, wait for its answer, and look for what it left behind."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
MARK = "STRATADVISOR_FAULT_MARK"
PATIENCE_SECONDS = 400.0
"""For anything to happen at all; the time that counts is written in the table."""
LEFT_SECONDS = 20.0
"""For processes to be gone after the command has answered."""


@dataclass
class Seen:
    """What came of one fault."""

    exit_code: int
    seconds: float
    """From the injection to the end of the command."""
    said: str
    """Standard error."""
    out: str = ""
    left: int = 0
    """Processes still there some seconds after the command ended."""
    cause: str = ""
    kept: str = ""


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    during: str
    what: str
    how: str
    run: Callable[[Path], Seen]
    expected: str
    """Regular expression over the cause."""
    exit_codes: tuple[int, ...]
    kept: str = ""
    """Regular expression over what was kept."""


@dataclass
class Job:
    """A running command and the mark that all its descendants carry."""

    process: subprocess.Popen[bytes]
    mark: str
    output: Path
    errors: Path
    started: float = field(default_factory=time.monotonic)

    def marked(self) -> list[psutil.Process]:
        """Return every process of this command, also those that left its tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def find(self, wanted: Callable[[psutil.Process], bool]) -> psutil.Process:
        """Return the process that fits, as soon as there is one."""

        def look() -> psutil.Process | None:
            for process in self.marked():
                with contextlib.suppress(psutil.Error, OSError):
                    if wanted(process):
                        return process
            return None

        return self.until(look, "no process was found to injure")

    def rank(self, number: int) -> psutil.Process:
        """Return the process that trains as a rank."""
        return self.find(lambda p: p.environ().get("RANK") == str(number) and "train.py" in " ".join(p.cmdline()))

    def until(self, look: Callable[[], object], otherwise: str) -> object:  # type: ignore[misc]
        """Return what ``look`` finds, once it does."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{otherwise}; it said: {self.errors.read_text(errors='replace')[-600:]}")

    def finish(self, since: float | None = None) -> Seen:
        """Wait for the end, count what is left, end that too."""
        try:
            code = self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1000
        seconds = time.monotonic() - (self.started if since is None else since)
        end = time.monotonic() + LEFT_SECONDS
        left = self.marked()
        while left and time.monotonic() < end:
            time.sleep(0.2)
            left = self.marked()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        said, out = (path.read_text(errors="replace") for path in (self.errors, self.output))
        return Seen(exit_code=code, seconds=seconds, said=said, out=out, left=len(left))


def start(
    command: Sequence[object], folder: Path, *, within: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Job:
    """Start ``command``; ``within`` goes before it (unshare, prlimit, sh -c ... sh)."""
    mark = uuid.uuid4().hex
    output, errors = folder / f"stdout-{mark}", folder / f"stderr-{mark}"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {}), MARK: mark}
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(
            [*within, *map(str, command)],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=_heed_interrupts,  # noqa: PLW1509 - no threads run here
        )
    return Job(process, mark, output, errors)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell lets what it starts in the background ignore it


def tool(*arguments: object) -> list[object]:
    """Return the command line of this tool."""
    return [sys.executable, "-m", "stratadvisor", *arguments]


def mounting(script: str) -> list[str]:
    """Return a prefix that runs ``script`` as root in a mount namespace of its own and then the command."""
    return ["unshare", "--mount", "--propagation", "private", *shell(script)]


def shell(script: str) -> list[str]:
    """Return a prefix that runs ``script`` and then becomes the command."""
    return ["sh", "-c", f'{script} && exec "$@"', "sh"]


def own_network(script: str = "ip link set lo up") -> list[str]:
    """Return a prefix with a network namespace of its own."""
    return ["unshare", "--net", *shell(script)]


@contextlib.contextmanager
def control_group(controller: str, limits: Mapping[str, int]):
    """Yield a prefix that enters a new control group (v1) with limits, and remove the group at the end."""
    folder = Path("/sys/fs/cgroup") / controller / f"stratadvisor-fault-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    try:
        for name, value in limits.items():
            (folder / name).write_text(str(value))
        yield shell(f"echo $$ > {folder}/cgroup.procs")
    finally:
        end = time.monotonic() + LEFT_SECONDS
        while folder.exists() and time.monotonic() < end:
            with contextlib.suppress(OSError):
                folder.rmdir()
            time.sleep(0.1)


def sentence(said: str) -> str:
    """Return the error sentence of a command, with its hint."""
    lines = said.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("stratadvisor: ")), None)
    return "" if at is None else " ".join(line.strip() for line in lines[at : at + 2])


def problems(fault: Fault, seen: Seen) -> list[str]:
    """Return how a fault was answered wrongly; empty when all is as it should be."""
    found = []
    if seen.exit_code not in fault.exit_codes:
        found.append(f"exit code {seen.exit_code}, not {' or '.join(map(str, fault.exit_codes))}")
    if not re.search(fault.expected, seen.cause):
        found.append(f"cause {seen.cause!r} is not {fault.expected!r}")
    if not re.search(fault.kept, seen.kept):
        found.append(f"kept {seen.kept!r} is not {fault.kept!r}")
    if seen.left:
        found.append(f"{seen.left} processes were left behind")
    if "Traceback (most recent call last)" in seen.said:
        found.append("a traceback was shown")
    return found


def send(process: psutil.Process, number: signal.Signals) -> float:
    """Send a signal and return the time."""
    process.send_signal(number)
    return time.monotonic()


@contextlib.contextmanager
def workplace():
    """Yield a folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="stratadvisor-faults-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
