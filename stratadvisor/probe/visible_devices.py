"""Which devices a process sees: CUDA_VISIBLE_DEVICES and its like, read as the CUDA driver reads them.

CUDA programming guide, "CUDA environment variables": unset shows all, empty shows none; entries are indexes or UUIDs
(an unambiguous beginning is enough); the first invalid entry ends the list. A device named twice leaves none, and a
number is read like strtoul does (``1gpu`` is 1), as the driver behaves and torch.cuda mirrors it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INDEX = re.compile(r"\s*\+?([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Visible:
    """Positions in the full list that stay visible, in the order of the variable."""

    positions: tuple[int, ...]
    by_index: bool = False
    """Whether the entries are numbers, whose meaning depends on the order of enumeration."""
    complaint: str = ""
    """What is wrong with the variable; empty when nothing is."""


def _position(entry: str, uuids: Sequence[str], indexed: int) -> int | None:
    """Return what one entry names: an index, a UUID or the beginning of exactly one UUID."""
    if entry.lower().startswith(("gpu-", "mig-")):
        wanted = entry.lower()
        matches = [i for i, uuid in enumerate(uuids) if uuid and uuid.lower().startswith(wanted)]
        return matches[0] if len(matches) == 1 else None
    match = _INDEX.match(entry)
    if match is None:
        return None
    index = int(match.group(1))
    return index if index < indexed else None


def select(
    value: str | None, uuids: Sequence[str], *, indexed: int | None = None, variable: str = "CUDA_VISIBLE_DEVICES"
) -> Visible:
    """Return what ``value`` leaves visible of the devices with ``uuids``, in enumeration order.

    Only the first ``indexed`` of them have a number; the rest, MIG slices, can be named by UUID alone.
    """
    indexed = len(uuids) if indexed is None else indexed
    if value is None:
        return Visible(tuple(range(indexed)))
    if not value.strip():
        return Visible((), complaint=f"{variable} is empty, which hides every device")
    chosen: list[int] = []
    by_index = False
    for raw in value.split(","):
        entry = raw.strip()
        position = _position(entry, uuids, indexed)
        if position is None:
            if entry == "NoDevFiles":
                return Visible((), complaint=f"{variable} is NoDevFiles: Slurm granted no device to this step")
            text = f"{variable} names {entry[:64]!r}, which is no device here: that entry and all behind it are ignored"
            return Visible(tuple(chosen), by_index, text)
        by_index = by_index or not entry.lower().startswith(("gpu-", "mig-"))
        if position in chosen:
            return Visible((), by_index, f"{variable} names {entry[:64]!r} twice, which hides every device")
        chosen.append(position)
    return Visible(tuple(chosen), by_index)
