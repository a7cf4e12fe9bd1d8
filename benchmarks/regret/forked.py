"""Fork a process that has torch imported already into a host of the lab.

Importing torch takes 3 to 4 processor seconds; on a host with a quarter of a processor that would be a quarter of a
minute for every rank of every run. A forked child is the same program without that wait.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy starts a thread that no fork would have

import torch

from lab.place import Place


def prepare() -> None:
    """Make forking safe: one thread, everything imported that ranks use."""
    torch.set_num_threads(1)  # no pool of threads that a child would miss
    for name in ("async_sgd", "ddp", "diloco", "fsdp", "hierarchical", "program"):
        importlib.import_module(f"stratadvisor.runtime.{name}")
    if len(os.listdir("/proc/self/task")) > 1:
        names = [Path(f"/proc/self/task/{t}/comm").read_text().strip() for t in os.listdir("/proc/self/task")]
        raise RuntimeError(f"threads are running, forking is not safe: {names}")


class Child:
    """A forked process, with as much of ``subprocess.Popen`` as is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        """End it, and its process group."""
        if self.poll() is None:
            for send in (os.killpg, os.kill):
                try:
                    send(self.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.wait()


def fork(action: Callable[[], int], place: Place | None, environment: Mapping[str, str], output: Path | int) -> Child:
    """Run ``action`` in a child on a host, its output in a file; its return value is the exit code."""
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 70
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        stream = output if isinstance(output, int) else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for standard in (1, 2):
            os.dup2(stream, standard)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if place is not None:
            place.enter()
        os.environ.update(environment)
        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
        code = action()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
