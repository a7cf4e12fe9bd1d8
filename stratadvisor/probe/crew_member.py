"""A child process that answers one request after another: the place where sub-probes really run.

Started by ``crew.Crew`` with the number of an inherited socket. It dies with its parent, offers itself first to the
kernel's out-of-memory killer, and answers every request with ``(status, value, reason)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stratadvisor.probe.outcome import UnsupportedHereError

_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    """Ask Linux for SIGKILL when the parent ends; elsewhere the closed socket ends us at the next request."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _offer_to_oom_killer() -> None:
    """When memory runs out the measurement shall die, not the tool or somebody's training."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")


def one_line(error: BaseException) -> str:
    """Return an exception as one short sentence; of another process's traceback its last line, which is the cause."""
    text = str(error).strip()
    if "Traceback (most recent call last):" in text:  # torch hands on what a data-loader worker raised
        text = text.splitlines()[-1]
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


def answer(target: str, settings: dict[str, Any]) -> tuple[str, Any, str]:
    """Run ``package.module:function`` and return (status, value, reason)."""
    module_name, function_name = target.split(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        return "ok", function(**settings), ""
    except UnsupportedHereError as problem:
        return "unsupported", None, one_line(problem)
    except PermissionError as problem:
        return "denied", None, one_line(problem)
    except MemoryError:
        return "failed", None, "out of memory"
    except Exception as problem:  # whatever a sub-probe raises becomes an observation
        return "failed", None, f"{type(problem).__name__}: {one_line(problem)}"


def main() -> None:
    """Serve requests until the parent closes the socket."""
    _die_with_parent(int(sys.argv[2]))
    _offer_to_oom_killer()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle: it ends the whole group
    with Connection(int(sys.argv[1])) as connection:
        connection.send("ready")
        while True:
            try:
                target, settings = connection.recv()
            except (EOFError, OSError):
                break
            result = answer(target, settings)
            try:
                connection.send(result)
            except (TypeError, AttributeError, ValueError) as problem:
                connection.send(("failed", None, f"the answer cannot be sent: {one_line(problem)}"))
            except OSError:
                break
    os._exit(0)  # no library's exit handler may hold us: everything worth having has been sent
