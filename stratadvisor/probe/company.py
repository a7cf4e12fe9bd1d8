"""Other probes that measure on this machine at the same time: each measures what the others leave."""

from __future__ import annotations

import contextlib
import os

import psutil

from stratadvisor.schema.profile import Verdict

_MEMBER = "stratadvisor.probe.crew_member"
"""Stands on the command line of every measuring process."""
_JOB = ("MASTER_ADDR", "MASTER_PORT")


def others() -> frozenset[int]:
    """Return the process ids of other probes that have measuring processes here and now, not of this one's job."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if any(_MEMBER in word for word in process.cmdline()):
                found.add(process.ppid())
    return frozenset(pid for pid in found - {os.getpid()} if not _same_job(pid))


def _same_job(pid: int) -> bool:
    """Whether a process stands for another node of this probe's job, which takes turns with this one."""
    mine = [os.environ.get(name) for name in _JOB]
    if None in mine:
        return False
    with contextlib.suppress(psutil.Error, OSError):
        environ = psutil.Process(pid).environ()
        return [environ.get(name) for name in _JOB] == mine
    return False


def verdicts(hostname: str, seen: frozenset[int]) -> tuple[Verdict, ...]:
    """Return the finding about probes seen before or after measuring."""
    if not seen:
        return ()
    numbers = ", ".join(str(pid) for pid in sorted(seen)[:4])
    return (
        Verdict(
            level="warning",
            subject=f"{hostname} probe",
            message=f"another probe measured here at the same time (process {numbers}): rates may be too low",
            advice="probe again when it has ended",
        ),
    )
