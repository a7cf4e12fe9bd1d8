"""What a path lies on: file system and free space. Nothing is read or written but the kernel's own tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from stratadvisor.probe.files import read_text
from stratadvisor.probe.host_memory import filesystem_size
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.profile import StorageProfile


def filesystem_of(path: PurePosixPath, root: Path) -> str:
    """Return the type of the file system that an absolute path lies on (the longest mount point above it)."""
    best, kind = -1, ""
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        words = before.split()
        if not separator or len(words) < 5 or not after.split():
            continue
        point = PurePosixPath(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), words[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:  # a later mount covers an earlier one
            best, kind = len(point.parts), after.split()[0]
    return kind


def collect(
    path: Path, root: Path = Path("/"), *, size_of: Callable[[Path], tuple[int, int]] = filesystem_size
) -> StorageProfile:
    """Return the file system and the free bytes of ``path``, without any rate."""
    full = path if path.is_absolute() else Path.cwd() / path
    try:
        free = reported(size_of(root / full.relative_to("/"))[1], "free to this user")
    except OSError as error:
        free = unknown(f"{path}: {error.strerror or error}")
    return StorageProfile(path=str(path), filesystem=filesystem_of(PurePosixPath(full), root), free_bytes=free)
