"""Which interface carried a transfer: the one whose byte counters moved by it.

``/proc/net/dev`` holds the numbers of ``/sys/class/net/*/statistics``, and those of this process's own network
namespace even where another namespace's sysfs is mounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stratadvisor.probe.files import read_int, read_text

_LEAST_SHARE = 0.5
"""Of the bytes moved: headers add to a counter, and nothing takes away."""


def byte_counters(root: Path = Path("/")) -> dict[str, int]:
    """Return received plus sent bytes of every interface."""
    found: dict[str, int] = {}
    for line in (read_text(root / "proc/net/dev") or "").splitlines():
        name, colon, rest = line.partition(":")
        numbers = rest.split()
        if colon and len(numbers) >= 9 and numbers[0].isdigit() and numbers[8].isdigit():
            found[name.strip()] = int(numbers[0]) + int(numbers[8])
    return found


def carrier(
    before: Mapping[str, int], after: Mapping[str, int], moved_bytes: int, preferred: str = "", root: Path = Path("/")
) -> str:
    """Return the interface that carried ``moved_bytes``; empty when none did.

    A bond and its member, or a bridge and its port, count the same bytes: then the one with hardware is named, or the
    preferred one, which holds the address.
    """
    deltas = {name: after[name] - before.get(name, 0) for name in after}
    moved = [name for name, delta in deltas.items() if delta >= _LEAST_SHARE * moved_bytes and delta > 0]
    if not moved:
        return ""

    def rank(name: str) -> tuple[bool, bool, int]:
        return (root / "sys/class/net" / name / "device").exists(), name == preferred, deltas[name]

    return max(moved, key=rank)


def stated_rate(name: str, root: Path = Path("/")) -> float | None:
    """Return the bytes per second that the driver of an interface states, virtual or not."""
    speed = read_int(root / "sys/class/net" / name / "speed") if name else None  # Mbit/s
    return speed * 1e6 / 8 if speed is not None and speed > 0 else None
