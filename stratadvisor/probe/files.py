"""Read small kernel files below a root folder; a file that cannot be read is None, never an exception."""

from __future__ import annotations

import re
from pathlib import Path

_NUMBER = re.compile(r"^\s*(-?[0-9]+)\b")
_MAX_BYTES = 8 * 1024 * 1024
_MAX_CPU = 2**16
"""Far above what Linux can number; a damaged list must not fill the memory."""


def read_text(path: Path) -> str | None:
    """Return the text without surrounding blanks, or None when there is nothing readable."""
    try:
        with path.open("rb") as handle:
            return handle.read(_MAX_BYTES).decode("utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_line(path: Path) -> str | None:
    """Return the first line, cut to a length that fits on a screen; None when it is empty or cannot be read."""
    lines = (read_text(path) or "").splitlines()
    return lines[0].strip()[:96] or None if lines else None


def read_int(path: Path) -> int | None:
    """Return the integer that a file starts with; None for anything else."""
    text = read_text(path)
    match = _NUMBER.match(text) if text is not None else None
    return int(match.group(1)) if match and len(match.group(1)) <= 20 else None


def parse_count(text: str | None) -> int | None:
    """Return a whole number of a file or an environment variable; None for anything else."""
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def list_dir(path: Path) -> list[Path]:
    """Return the entries of a folder by name, digits in their numeric order; empty when it cannot be read."""
    try:
        entries = list(path.iterdir())
    except (OSError, ValueError):
        return []
    return sorted(entries, key=lambda p: [int(t) if t.isdigit() else t for t in re.split(r"([0-9]+)", p.name)])


def link_name(path: Path) -> str:
    """Return the last part of what a symbolic link points to; empty when it is none."""
    try:
        return path.readlink().name
    except (OSError, ValueError):
        return ""


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers of a kernel list such as ``0-3,8``; empty for anything else."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,7})(?:-([0-9]{1,7}))?\s*", part)
        if match is None:
            continue
        first = int(match.group(1))
        numbers.update(range(first, min(int(match.group(2) or first), _MAX_CPU) + 1))
    return frozenset(numbers)


def status_field(root: Path, name: str) -> str | None:
    """Return a field of ``/proc/self/status``."""
    text = read_text(root / "proc/self/status") or ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return None
