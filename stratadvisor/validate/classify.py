"""Why a run failed: from exit codes, signals, counters of the kernel and typed exception lines, never from "error".

An exception line is ``SomeError: message`` as Python prints it, possibly behind a rank prefix such as ``[rank0]:``.
The first cause in the order of ``causes.TYPED`` wins over consequences: a rank that ran out of memory makes the others
complain about lost connections, not the other way round.
"""

from __future__ import annotations

import re

from stratadvisor.schema.plan import Plan
from stratadvisor.schema.validation import FailureCause
from stratadvisor.validate.causes import TYPED, Raised, smaller
from stratadvisor.validate.launch import Ended

_PREFIX = r"^(?:\[(?:default)?\d*\]:)?\s*(?:\[rank(\d+)\]:\s*)?"
_EXCEPTION = re.compile(_PREFIX + r"([A-Za-z_][\w.]*(?:Error|Exception)): (.*)$")
_BARE = re.compile(_PREFIX + r"(MemoryError)\s*$")
_NO_MODULE = re.compile(
    r"^\S*python[\d.]*: "
    r"(?:Error while finding module specification for '[^']*' \((\w+Error): (.*)\)|(No module named .*))$"
)
"""What the interpreter says when the launcher's own module is not there."""
_REFUSAL = re.compile(r"^(?:\[(?:default)?\d*\]:)?\s*rank (\d+): error: (.+)$")
"""How ``runtime.program`` says why it cannot go on."""
_NATIVE = re.compile(
    r"EADDRINUSE|no socket interface found|ifa != nullptr|Watchdog caught collective"
    r"|(fork|clone|pthread_create|Thread creation)\b.*Resource temporarily unavailable|: Too many open files$"
    r"|: No space left on device$"
)
"""Printed by C++ code without a Python exception line."""
_LOST = "another process of this run"
"""How a surviving rank begins to say that it is not the one that failed."""
_RANK_END = re.compile(r"rank\s*:\s*(\d+) \(local_rank\b[^\n]*\n\s*exitcode\s*:\s*(-?\d+)")
_ABORT, _KILL, _TERM = 6, 9, 15
_TAIL_LINES = 12
_MAX_LINE = 300
_SIGNALS = {
    6: "SIGABRT",
    7: "SIGBUS",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}


def classify(ended: Ended, log: str, plan: Plan, *, memory_limit_bytes: float | None = None) -> FailureCause:
    """Return the cause of a failed run; ``unknown`` with the last lines where the evidence names none."""
    if ended.how == "interrupted":
        return FailureCause(kind="interrupted", summary="interrupted by the user", fix="")
    raised = _raised(log)
    for typed in TYPED:
        for one in raised:
            if typed.matches(one):
                return FailureCause(
                    kind=typed.kind,
                    summary=f"{typed.summary}: {one.text[:160]}" if one.text else typed.summary,
                    evidence=_around(log, one.line),
                    fix=typed.fix(one, plan),
                    rank=one.rank,
                )
    return _refused(log) or _by_signal(ended, log, plan, memory_limit_bytes)


def _refused(log: str) -> FailureCause | None:
    """Return what the emitted program itself gave as the reason for ending; launchers then end the other ranks."""
    for line in log.splitlines():
        match = _REFUSAL.match(line[:4000])
        if match is not None and not match[2].startswith(_LOST):
            return FailureCause(
                kind="bad_config",
                summary=f"the training program ended: {match[2][:_MAX_LINE]}",
                evidence=_around(log, line),
                fix="correct what it names, or write the bundle again with recommend --force",
                rank=int(match[1]),
            )
    return None


def _raised(log: str) -> list[Raised]:
    found = []
    lines = log.splitlines()
    for at, line in enumerate(lines):
        match = _EXCEPTION.match(line[:4000]) or _BARE.match(line[:4000])
        if match is not None:
            rank = int(match[1]) if match[1] else None
            text = match[3] if match.re is _EXCEPTION else ""
            if text.rstrip().endswith(":"):
                text = " ".join((text.rstrip(), *_listed(lines[at + 1 : at + 1 + _TAIL_LINES])))
            found.append(Raised(rank, match[2], text, line))
        elif (missing := _NO_MODULE.match(line[:4000])) is not None:
            found.append(Raised(None, missing[1] or "ModuleNotFoundError", missing[2] or missing[3], line))
        elif _NATIVE.search(line):
            found.append(Raised(None, "", line.strip()[:_MAX_LINE], line))
    return found


def _listed(after: list[str]) -> list[str]:
    """Return the points of a list that a message announces with a colon."""
    points = []
    for line in after:
        match = re.match(_PREFIX + r"-\s+(.+)$", line[:_MAX_LINE])
        if match is None:
            break
        points.append(match[2].strip() + ";")
    return points


def _by_signal(ended: Ended, log: str, plan: Plan, limit: float | None) -> FailureCause:
    signal_number, rank = _signal(log)
    of_launcher = False
    if signal_number is None:
        signal_number, of_launcher = _signal_of_exit(ended.exit_code)  # a launcher that lives tells of its ranks
    if ended.how in ("stalled", "time_limit"):
        return _hang(ended, log)
    if signal_number == _KILL:
        near_limit = limit is not None and ended.peak_tree_bytes > 0.85 * limit
        if ended.cgroup_oom_kills or near_limit:
            return FailureCause(
                kind="host_out_of_memory",
                summary="the kernel killed a rank for host memory"
                f" (the run held {ended.peak_tree_bytes / 2**30:.1f} GiB)",
                evidence=_tail(log),
                fix=smaller(Raised(None, "", "", ""), plan),
                rank=rank,
            )
        if of_launcher:
            return _launcher_died("SIGKILL", log)
        return FailureCause(
            kind="rank_died",
            summary=f"{_who(rank)} was killed from outside (SIGKILL); no memory kill was counted",
            evidence=_tail(log),
            fix="look in `dmesg` and in the scheduler's log for who killed it",
            rank=rank,
        )
    if signal_number == 7:
        return FailureCause(
            kind="shared_memory_exhausted",
            summary="a rank met a bus error: usually /dev/shm is full",
            evidence=_tail(log),
            fix="fewer data-loader workers, or a larger /dev/shm",
            rank=rank,
        )
    if signal_number is not None:
        name = _SIGNALS.get(signal_number, str(signal_number))
        if of_launcher:
            return _launcher_died(name, log)
        return FailureCause(
            kind="rank_died",
            summary=f"{_who(rank)} died of signal {name}",
            evidence=_tail(log),
            fix="read its last lines",
            rank=rank,
        )
    if ended.exit_code == 127:
        return FailureCause(
            kind="missing_package",
            summary="the launcher was not found on PATH (exit code 127)",
            evidence=_tail(log),
            fix="install torch (torchrun) or deepspeed in this environment",
        )
    return FailureCause(
        kind="unknown",
        summary=f"the run ended with exit code {ended.exit_code} and no cause that is known here",
        evidence=_tail(log),
        fix="read the lines above and the log",
        rank=rank,
    )


def _hang(ended: Ended, log: str) -> FailureCause:
    where = [line.strip() for line in log.splitlines() if re.match(r"\s+File \".*\", line \d+ in ", line)]
    what = "stopped giving any sign of life" if ended.how == "stalled" else "reached the time limit"
    if ended.halted:
        return FailureCause(
            kind="hang",
            summary=f"the run {what} after {ended.wall_seconds:.0f} s: {'; '.join(ended.halted[:4])}",
            evidence=tuple(where[:_TAIL_LINES]) or _tail(log),
            fix="let that process run again, or find out what it waits for; the other ranks wait for it",
        )
    return FailureCause(
        kind="hang",
        summary=f"the run {what} after {ended.wall_seconds:.0f} s",
        evidence=tuple(where[:_TAIL_LINES]) or _tail(log),
        fix="look at the stack lines: ranks inside a collective wait for one that is elsewhere; or raise --stall-limit",
    )


def _who(rank: int | None) -> str:
    return "a rank" if rank is None else f"rank {rank}"


def _launcher_died(name: str, log: str) -> FailureCause:
    return FailureCause(
        kind="launcher_died",
        summary=f"the launcher itself was ended from outside by {name}; its ranks were ended too",
        evidence=_tail(log),
        fix="look in `dmesg` and in the scheduler's log for who ended it: a job's time or memory limit, or a person",
    )


def _signal(log: str) -> tuple[int | None, int | None]:
    """Return the signal that a launcher says a rank died of, and the rank.

    torchrun reports every rank, with the one that it saw end first as the root cause. Others end by SIGTERM, which
    torchrun sends them, or by SIGABRT when a lost connection ends them: neither is the cause while there is another.
    """
    report, _, last = log.partition("Root Cause (first observed failure)")
    ends = [(-int(e[2]), int(e[1])) for part in (last, report) for e in _RANK_END.finditer(part)]
    if ends:
        died = [end for end in ends if end[0] > 0 and (end[0] != _TERM or end == ends[0])]
        if not died:
            return None, ends[0][1]  # it ended by itself, and says why or does not
        return min(died, key=lambda end: (end[0] == _TERM, end[0] == _ABORT))
    # what DeepSpeed's launcher and torchrun's log say
    match = re.search(
        r"Signal (\d+) \(SIG\w+\) received by PID|exits with return code = -(\d+)|exitcode\s*:\s*-(\d+)", log
    )
    return (int(next(filter(None, match.groups()))) if match else None), None


def _signal_of_exit(code: int | None) -> tuple[int | None, bool]:
    """Return the signal behind an exit code, and whether it ended the launcher.

    ``launch.sh`` waits for the launcher and tells its signal as 128 more. A crash (SIGSEGV) told that way may be a
    rank's, handed on; SIGKILL and SIGTERM come from outside, and a launcher that they did not end reports them.
    """
    if code is not None and code < 0:
        return -code, True
    number = code - 128 if code is not None and 128 < code < 160 else None
    return number, number in (_KILL, _TERM)


def _around(log: str, line: str) -> tuple[str, ...]:
    lines = log.splitlines()
    at = lines.index(line)
    listed = len(_listed(lines[at + 1 : at + 1 + _TAIL_LINES])) if line.rstrip().endswith(":") else 0
    return tuple(text[:_MAX_LINE] for text in lines[max(0, at - 4) : at + 1 + listed] if text.strip())


def _tail(log: str) -> tuple[str, ...]:
    lines = [text[:_MAX_LINE] for text in log.splitlines() if text.strip()]
    return tuple(lines[-_TAIL_LINES:])
