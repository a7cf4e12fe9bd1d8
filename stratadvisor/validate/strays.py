"""Processes of a run that left its tree: launchers give every rank a session of its own.

A launcher that is killed leaves ranks without a parent, which no process group and no tree of children names. Their
environment does: the run's folder is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

import psutil

VARIABLE = "STRATADVISOR_RUN_DIR"
WAIT_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Opened here: between fork and exec the loader's lock may be held by a thread that no longer exists."""


def prepare_child(mask: Collection[int]) -> None:
    """Take over a signal mask, and ask Linux for SIGTERM when the parent dies; to be called between fork and exec.

    ``launch.sh`` takes the signal as a request to stop: a killed ``run-config`` leaves no ranks behind.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if _LIBC is not None:
        with contextlib.suppress(OSError, AttributeError):
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end(run_directory: Path) -> int:
    """End what still runs for ``run_directory`` and return how many processes that were; never this one or above."""
    spared = {os.getpid()}
    with contextlib.suppress(psutil.Error):
        spared |= {parent.pid for parent in psutil.Process().parents()}
    found = []
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == str(run_directory):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=WAIT_SECONDS)
    return len(found)
