"""Probe nodes over ssh, all at the same time, and the links between them; who does not answer is named and left out.

Host keys, user names, ports and keys are the business of the user's ssh configuration. Nobody is asked for a password,
and no agent, port or display is forwarded. What the nodes and this program tell each other goes through ssh's own
standard input and output.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stratadvisor.errors import ProbeError, UsageError
from stratadvisor.probe.job import broken_off
from stratadvisor.probe.looker import Progress, selection
from stratadvisor.probe.nodes.conductor import Conductor, Found
from stratadvisor.probe.nodes.fleet import STARTING_SECONDS, limits_for
from stratadvisor.probe.nodes.journal import Journal
from stratadvisor.probe.nodes.lines import Connection, Lines, hello_of
from stratadvisor.probe.nodes.meeting import raise_file_limit
from stratadvisor.probe.nodes.together import cluster_profile
from stratadvisor.schema.profile import ClusterProfile

OPTIONS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
AT_ONCE = 64
"""Connections being opened at the same time; sshd refuses more than a few, and so may a gateway."""
_OPENING_SECONDS = 30.0
"""A host that is still silent after this no longer keeps others from being called."""
_SSH_FAILED = 255
_MODULE = "stratadvisor.probe.nodes.piped"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every node is asked to do."""

    ssh: tuple[str, ...]
    python: str
    settings: str
    """One line of JSON: what to measure."""

    def command(self, host: str) -> list[str]:
        """Return the command line; what goes to the other side is one word for its shell, whichever that is."""
        return [*self.ssh, *OPTIONS, "--", host, shlex.join([self.python, "-m", _MODULE])]


class _Remote(Connection):
    """One ssh process."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes], rank: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(process.stdout.fileno(), process.stdin.fileno(), rank)
        self.process, self.errors, self.begun = process, errors, time.monotonic()

    def close(self) -> None:
        """End the ssh process; the other side ends with its input."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        try:
            self.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.errors.close()


class Remotes(Lines):
    """The channel of a conductor that calls its nodes over ssh; a node's rank is its place in the list."""

    def __init__(self, hosts: Sequence[str], asked: Asked) -> None:
        super().__init__(len(hosts))
        self._hosts, self._asked_for = hosts, asked
        self._next = 0
        self._call_more()

    def _call_more(self) -> None:
        now = time.monotonic()
        opening = sum(
            1
            for connection in self._nodes.values()
            if connection.hello is None
            and isinstance(connection, _Remote)
            and now - connection.begun < _OPENING_SECONDS
        )
        while self._next < len(self._hosts) and opening < AT_ONCE:
            self._call(self._next)
            self._next += 1
            opening += 1

    def _call(self, rank: int) -> None:
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the connection
        try:
            process = subprocess.Popen(
                self._asked_for.command(self._hosts[rank]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as problem:
            errors.close()
            self._lost(rank, f"{self._asked_for.ssh[0]} does not start: {problem.strerror}")
            return
        connection = _Remote(process, errors, rank)
        self._nodes[rank] = connection
        self._add(connection)
        connection.write += self._asked_for.settings.encode() + b"\n"
        self._flush(connection)

    def _greeted(self, connection: Connection, line: bytes) -> bool:
        """A login script may print something before."""
        hello = hello_of(line)
        if hello is not None and connection.rank is not None:
            self._welcome(connection, connection.rank, hello)
        return True

    def _look_around(self, now: float) -> None:
        self._call_more()

    def _ended(self, connection: Connection, problem: OSError | None) -> str:
        assert isinstance(connection, _Remote)
        try:
            code = connection.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        said = _last_line(connection.errors)
        if code == _SSH_FAILED:
            return f"ssh: {said or 'it said nothing'}"
        if code > 128 and not said:
            return f"its process was ended by signal {code - 128}"
        return f"code {code}: {said or 'it said nothing'}"

    def _host_state(self, connection: Connection) -> str:
        return "though ssh still holds its connection: its process is stopped, or gets no processor time"


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    said = [line for line in lines if line.lower().startswith(("error", "ssh:"))] or lines
    return "".join(c for c in said[-1][:200] if c.isprintable()) if said else ""


def probe_hosts(
    hosts: Sequence[str],
    *,
    ssh: str = "ssh",
    python: str = "python3",
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    time_limit_seconds: float = 60.0,
    limit_seconds: float | None = None,
    progress: Progress | None = None,
    keep: Callable[[ClusterProfile], object] | None = None,
    output: Path | None = None,
) -> ClusterProfile:
    """Return one profile of all hosts that answered.

    Args:
        hosts: names as ssh takes them.
        ssh: the ssh command with options of its own: ``ssh -p 2222``.
        python: interpreter on the hosts that has this tool.
        only: sub-probes, as of a node.
        skip: the same.
        quick: fewer sizes and repeats.
        time_limit_seconds: of each node's measurements.
        limit_seconds: until a host that has not said a word counts as silent; None: a minute or the time limit,
            and more for many hosts.
        progress: told after each host.
        keep: given what has come together when the probe is broken off with Ctrl-C.
        output: where the profile will be written; what comes in lies beside it until then.

    Raises:
        UsageError: ``ssh`` is not a command, or ``only`` and ``skip`` name no sub-probe.
        ProbeError: no host answered.

    """
    selection(only, skip)
    settings = {"only": only, "skip": skip, "quick": quick, "time_limit_seconds": time_limit_seconds}
    asked = Asked(ssh=_words(ssh), python=python, settings=json.dumps(settings))
    usual = max(STARTING_SECONDS, time_limit_seconds) + len(hosts) / 4
    arrive = limit_seconds if limit_seconds is not None else usual
    limits = limits_for(len(hosts), time_limit_seconds, quick=quick, arrive_seconds=arrive)
    raise_file_limit(3 * len(hosts))
    journal = Journal(output) if output is not None else None
    remotes = Remotes(hosts, asked)
    conductor = Conductor(
        remotes, len(hosts), limits, note=journal.note if journal is not None else None, progress=progress
    )
    conductor.found.labels.update(enumerate(hosts))
    try:
        found = conductor.run()
    except KeyboardInterrupt:
        if keep is not None and conductor.found.profiles:
            keep(broken_off(cluster_profile(conductor.found)))
        raise
    finally:
        remotes.close()
    profile = _profile(found)
    if keep is not None:
        keep(profile)
    if journal is not None:
        journal.remove()
    return profile


def _profile(found: Found) -> ClusterProfile:
    if found.profiles:
        return cluster_profile(found)
    rank, reason = min(found.lost.items())
    others = f" (and {len(found.lost) - 1} more)" if len(found.lost) > 1 else ""
    raise ProbeError(
        f"no host could be probed: {found.labels[rank]}: {reason}{others}",
        hint="check that ssh HOST python3 -m stratadvisor --version works without a password",
    )


def _words(ssh: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(ssh))
    except ValueError:
        words = ()
    if not words:
        raise UsageError(f"--ssh {ssh[:60]!r} is not a command", hint='for example --ssh "ssh -p 2222"')
    return words
