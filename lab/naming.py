"""Names that say who laid something out: whatever a dead owner left can be told from what is in use."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

PREFIX = "netlab"
_NAME = re.compile(rf"({PREFIX}-(\d+)-(\d+)-\d+)(?:\..+)?")
_numbers = itertools.count(1)


def birth(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since boot; None when there is none (or only its remains)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command name before may hold blanks
    return None if fields[0] == "Z" else int(fields[19])


def new_name() -> str:
    """Return a name for a cluster of this process: number and birth of the owner tell a reused number apart."""
    return f"{PREFIX}-{os.getpid()}-{birth(os.getpid())}-{next(_numbers)}"


def cluster_of(name: str) -> str | None:
    """Return the cluster that a namespace, group or file belongs to; None when it is not the lab's."""
    match = _NAME.fullmatch(name)
    return match.group(1) if match else None


def owner(name: str) -> int:
    """Return the process number of the owner of a cluster."""
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match.group(2))


def alive(name: str) -> bool:
    """Return whether the owner of a cluster still runs."""
    match = _NAME.fullmatch(name)
    return match is not None and birth(int(match.group(2))) == int(match.group(3))
