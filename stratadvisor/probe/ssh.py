"""Probe nodes over ssh, all at the same time; who does not answer is named and left out.

Host keys, user names, ports and keys are the business of the user's ssh configuration. Nobody is asked for a password,
and no agent, port or display is forwarded.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from pydantic import ValidationError

from stratadvisor.errors import ProbeError, UsageError
from stratadvisor.probe.looker import Progress
from stratadvisor.probe.merge import merge_profiles
from stratadvisor.probe.nodes.together import distinct
from stratadvisor.schema.profile import ClusterProfile, Observation, Verdict

OPTIONS = ("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "ConnectTimeout=20")
AT_ONCE = 64
STARTING_SECONDS = 60.0
"""Beside the measurements' own limit: connecting, importing torch from a shared file system, and ending."""
_SSH_FAILED = 255
_NAME = "hosts"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every node is asked to do."""

    ssh: tuple[str, ...]
    python: str
    arguments: tuple[str, ...]
    """Further arguments of ``stratadvisor probe``."""
    limit_seconds: float

    def command(self, host: str) -> list[str]:
        """Return the command line; what goes to the other side is one word for its shell, whichever that is."""
        probe = shlex.join([self.python, "-m", "stratadvisor", "probe", "--json", *self.arguments])
        script = f'd=$(mktemp -d) || exit 1; trap \'rm -rf "$d"\' EXIT; {probe} --output "$d/cluster.json"'
        return [*self.ssh, *OPTIONS, "--", host, f"sh -c {shlex.quote(script)}"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A host's profile, or why there is none."""

    profile: ClusterProfile | None = None
    status: str = "ok"
    reason: str = ""


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
        limit_seconds: until a host counts as silent; None: the former and a minute.
        progress: told after each host.

    Raises:
        UsageError: ``ssh`` is not a command.
        ProbeError: no host answered.

    """
    arguments = ["--time-limit", f"{time_limit_seconds:g}", *(["--quick"] if quick else [])]
    arguments += [word for name in only for word in ("--only", name)]
    arguments += [word for name in skip for word in ("--skip", name)]
    limit = limit_seconds if limit_seconds is not None else time_limit_seconds + STARTING_SECONDS
    asked = Asked(ssh=_words(ssh), python=python, arguments=tuple(arguments), limit_seconds=limit)
    answers: dict[str, Answer] = {}
    with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
        waiting = {pool.submit(_ask, host, asked): host for host in hosts}
        for done, future in enumerate(as_completed(waiting), 1):
            host = waiting[future]
            answers[host] = future.result()
            if progress is not None:
                progress(f"{host}: {answers[host].reason or 'measured'}", done / len(hosts))
    return _together([(host, answers[host]) for host in hosts])


def _words(ssh: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(ssh))
    except ValueError:
        words = ()
    if not words:
        raise UsageError(f"--ssh {ssh[:60]!r} is not a command", hint='for example --ssh "ssh -p 2222"')
    return words


def _ask(host: str, asked: Asked) -> Answer:
    try:
        process = subprocess.Popen(
            asked.command(host),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as problem:
        return Answer(status="failed", reason=f"{asked.ssh[0]} does not start: {problem.strerror}")
    try:
        output, errors = process.communicate(timeout=asked.limit_seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Answer(status="timed_out", reason=f"no answer within {asked.limit_seconds:g} s")
    if process.returncode != 0:
        who = "ssh" if process.returncode == _SSH_FAILED else f"code {process.returncode}"
        return Answer(status="failed", reason=f"{who}: {_last_line(errors) or 'it said nothing'}")
    begin, end = output.find(b"{"), output.rfind(b"}")  # a login script may print something before
    try:
        profile = ClusterProfile.model_validate_json(output[begin : end + 1])
    except ValidationError:
        return Answer(status="failed", reason="its answer is not a profile of this version")
    if len(profile.nodes) != 1:
        return Answer(status="failed", reason=f"its answer describes {len(profile.nodes)} nodes")
    return Answer(profile=profile)


def _last_line(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    said = [line for line in lines if line.lower().startswith(("error", "ssh:"))] or lines
    return "".join(c for c in said[-1][:200] if c.isprintable()) if said else ""


def _together(answers: list[tuple[str, Answer]]) -> ClusterProfile:
    silent = [(host, answer) for host, answer in answers if answer.profile is None]
    profiles = [answer.profile for _, answer in answers if answer.profile is not None]
    if not profiles:
        host, answer = silent[0]
        others = f" (and {len(silent) - 1} more)" if len(silent) > 1 else ""
        raise ProbeError(
            f"no host could be probed: {host}: {answer.reason}{others}",
            hint="check that ssh HOST python3 -m stratadvisor --version works without a password",
        )
    profiles, verdicts = distinct(profiles, list(range(len(profiles))))
    merged = merge_profiles(profiles)
    observations = [
        Observation.model_validate({"probe": _NAME, "status": answer.status, "reason": f"{host}: {answer.reason}"})
        for host, answer in silent
    ]
    verdicts += [
        Verdict(
            level="warning",
            subject=host,
            message=f"was not probed and is left out: {answer.reason}",
            advice="repair it or leave it out of --hosts, then probe again",
        )
        for host, answer in silent
    ]
    return merged.model_copy(
        update={
            "observations": (*merged.observations, *observations),
            "verdicts": (*merged.verdicts, *verdicts),
        }
    )
