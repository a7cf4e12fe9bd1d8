"""Child processes, one per rank-to-be, that run sub-probes: a hang, a crash or a lack of memory stays with them.

Each member leads a session of its own, so that ending its process group also ends what it started (data-loader
workers), and Ctrl-C reaches the parent alone. Members stay between requests: torch is imported once.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, get_args

import stratadvisor

Status = Literal["ok", "unsupported", "denied", "timed_out", "failed", "skipped"]

_LAUNCHER_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "PET_NODE_RANK",
    "PET_NNODES",
)
_BOOTSTRAP = (
    "import sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv[3]]; "
    "from stratadvisor.probe.crew_member import main; main()"
)
"""The working directory leaves the search path: a user's ``random.py`` must not replace a library."""


_LASTING_ERRORS = ("CUDA error", "HIP error")
"""After such an error every further call of the same process fails: it is started anew for the next request."""

_GRACE_SECONDS = 3.0
"""Time for the other ranks of a group to notice by themselves that one is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a member came back with."""

    status: Status
    value: Any = None
    reason: str = ""
    seconds: float = 0.0
    lost: bool = False
    """Whether the process ended instead of answering."""


def member_environment(threads: int, gloo_interface: str = "lo") -> dict[str, str]:
    """Return the environment of a member: this one without a launcher's rank, with ``threads`` cores to use.

    gloo uses ``lo`` among members of one host (no name lookup, no firewall); for others name the interface, or give
    an empty text to leave the choice to gloo. A user's own GLOO_SOCKET_IFNAME is kept for those.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _LAUNCHER_VARIABLES}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = str(threads)
    if gloo_interface == "lo":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    elif gloo_interface:
        environment.setdefault("GLOO_SOCKET_IFNAME", gloo_interface)
    return environment


def _scratch() -> IO[bytes]:
    """Return a file for a member's last words; in memory where the system can: /tmp may be full or read-only."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.fdopen(os.memfd_create("stratadvisor-member"), "w+b")
    return tempfile.TemporaryFile()


class Member:
    """One child process."""

    def __init__(self, threads: int, gloo_interface: str = "lo") -> None:
        self._threads = threads
        self._gloo_interface = gloo_interface
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: multiprocessing.connection.Connection | None = None
        self._errors: IO[bytes] | None = None
        self._ready = False
        self.losses = 0
        """How often the process hung or died during a request."""

    @property
    def pid(self) -> int | None:
        """Process id, which is also the process group; None while not started."""
        return self._process.pid if self._process else None

    def start(self) -> multiprocessing.connection.Connection:
        """Start the process unless it runs already.

        Raises:
            OSError: the system has no more processes, open files or memory for it.

        """
        if self._connection is not None:
            return self._connection
        ours, theirs = multiprocessing.connection.Pipe()
        root = str(Path(stratadvisor.__file__).resolve().parent.parent)
        try:
            self._errors = _scratch()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), str(os.getpid()), root],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=member_environment(self._threads, self._gloo_interface),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            self.end()
            raise
        finally:
            theirs.close()
        self._connection, self._ready = ours, False
        return ours

    def send(self, target: str, settings: Mapping[str, Any]) -> None:
        """Hand over a request."""
        with contextlib.suppress(OSError):  # a dead member is noticed when its answer is read
            self.start().send((target, dict(settings)))

    def receive(self) -> Answer | None:
        """Return the answer that has arrived; None for the greeting of a fresh process."""
        assert self._connection is not None
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            return Answer(status="failed", reason=self._cause_of_death(), lost=True)
        if not self._ready and message == "ready":
            self._ready = True
            return None
        status, value, reason = message
        assert status in get_args(Status)
        return Answer(status=status, value=value, reason=reason)

    def _cause_of_death(self) -> str:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "the measuring process was ended by SIGKILL, most likely for lack of memory"
        last = self._last_words()
        died = code is not None and code < 0
        how = f"was ended by {signal.Signals(-code).name}" if died else f"ended with code {code}"
        return f"the measuring process {how}" + (f": {last}" if last else "")

    def _last_words(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 4096))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""

    def end(self) -> None:
        """End the process and everything in its group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._connection = self._errors = None


class Crew:
    """Members 0 to ``size`` - 1, started when first asked, started again after one was lost."""

    def __init__(self, size: int, threads: int = 1, *, gloo_interface: str = "lo") -> None:
        self._threads = threads
        self._gloo_interface = gloo_interface
        self.members: list[Member] = []
        self.grow(size)

    def grow(self, size: int) -> None:
        """Add members until there are ``size``."""
        self.members += [Member(self._threads, self._gloo_interface) for _ in range(size - len(self.members))]

    def ask(
        self,
        target: str,
        settings: Mapping[int, Mapping[str, Any]],
        limit_seconds: float,
        *,
        together: bool = False,
    ) -> dict[int, Answer]:
        """Send each named member its settings, all at once, and return an Answer for every one of them.

        A member that has not answered after ``limit_seconds`` is ended and gives ``timed_out``. With ``together`` the
        members wait for each other: when one is lost the others are ended soon after, through no fault of theirs.
        """
        begin = time.monotonic()
        end = begin + limit_seconds
        answers: dict[int, Answer] = {}
        waiting: dict[Any, int] = {}
        forsaken = False
        try:
            for index, wanted in settings.items():
                try:
                    waiting[self.members[index].start()] = index
                    self.members[index].send(target, wanted)
                except OSError as problem:
                    said = f"no measuring process can be started: {problem.strerror or problem}"
                    answers[index] = Answer(status="failed", reason=said)
                    if together:
                        forsaken, end = True, min(end, time.monotonic() + _GRACE_SECONDS)
            while waiting:
                arrived = multiprocessing.connection.wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
                if not arrived:
                    break
                for connection in arrived:
                    index = waiting[connection]
                    got = self.members[index].receive()
                    if got is None:
                        continue
                    answers[index] = replace(got, seconds=time.monotonic() - begin)
                    del waiting[connection]
                    self._after(index, got)
                    if together and got.lost and not forsaken:
                        forsaken, end = True, min(end, time.monotonic() + _GRACE_SECONDS)
        except BaseException:
            self.close()
            raise
        for index in waiting.values():
            answers[index] = self._give_up(index, limit_seconds, forsaken, time.monotonic() - begin)
        return dict(sorted(answers.items()))

    def _after(self, index: int, got: Answer) -> None:
        """End a process that is of no more use; it is started again when next asked."""
        if got.lost:
            self._lose(index)
        elif got.status == "failed" and any(sign in got.reason for sign in _LASTING_ERRORS):
            self.members[index].end()

    def _give_up(self, index: int, limit_seconds: float, forsaken: bool, seconds: float) -> Answer:
        if forsaken:
            self.members[index].end()
            return Answer(status="failed", reason="it was waiting for a rank that was lost", seconds=seconds)
        self._lose(index)
        return Answer(status="timed_out", reason=f"no answer within {limit_seconds:.3g} s", seconds=seconds)

    def _lose(self, index: int) -> None:
        self.members[index].losses += 1
        self.members[index].end()

    def close(self) -> None:
        """End every member."""
        for member in self.members:
            member.end()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
