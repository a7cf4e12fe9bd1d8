"""Targets for child processes of the probe: real functions that really hang, crash and fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any


def echo(**settings: Any) -> dict[str, Any]:
    return settings


def process_id(**_: Any) -> int:
    return os.getpid()


def hang(**_: Any) -> None:
    time.sleep(3600)


def hang_if(hanging: bool, **_: Any) -> str:
    if hanging:
        time.sleep(3600)
    return "answered"


def hang_or_die(dying: bool, **_: Any) -> None:
    if dying:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def crash(**_: Any) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def killed(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(**_: Any) -> None:
    sys.stderr.write("cannot open libstrange.so\n")
    sys.stderr.flush()
    os._exit(7)


def abort(**_: Any) -> None:
    sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n")
    sys.stderr.flush()
    os.abort()


def worker_raised(**_: Any) -> None:
    """Raise what torch's data loader raises: a message with the traceback of another process."""
    import traceback

    try:
        raise OSError(28, "No space left on device")
    except OSError:
        told = traceback.format_exc()
    raise RuntimeError(f"Caught OSError in DataLoader worker process 0.\nOriginal {told}")


def no_memory(**_: Any) -> None:
    raise MemoryError


def denied(**_: Any) -> None:
    raise PermissionError(13, "Permission denied", "/dev/strange")


def broken(**_: Any) -> None:
    raise ValueError("first line\nsecond line")


def lasting(**_: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def unsendable(**_: Any) -> Any:
    return lambda: None


def child_that_sleeps(**_: Any) -> int:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid


def environment(**_: Any) -> dict[str, str]:
    return dict(os.environ)


def loaded_modules(**_: Any) -> list[str]:
    return sorted(sys.modules)
