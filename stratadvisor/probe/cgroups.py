"""Control groups: the folders, from the process's own group up to the mount, whose limits bind this process.

Kernel documentation: admin-guide/cgroup-v2 and admin-guide/cgroup-v1. A limit of a parent binds all below it, so
every level is read. Inside a container the folder named by ``/proc/self/cgroup`` may lie above what is mounted:
the mount's own root is cut off, and what then does not exist is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from stratadvisor.probe.files import read_text

Version = Literal["cgroup v1", "cgroup v2"]


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``/proc/self/mountinfo`` that concerns control groups."""

    version: Version
    controllers: frozenset[str]
    inside: PurePosixPath
    """The group that is mounted."""
    at: PurePosixPath


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), text)


def mounts(root: Path) -> list[Mount]:
    """Return the mounted hierarchies, later mounts last."""
    found = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not separator or len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        version: Version = "cgroup v2" if right[0] == "cgroup2" else "cgroup v1"
        controllers = frozenset(right[2].split(",")) if version == "cgroup v1" else frozenset[str]()
        inside, at = PurePosixPath(_unescape(left[3])), PurePosixPath(_unescape(left[4]))
        if not at.is_absolute():
            continue
        found.append(Mount(version=version, controllers=controllers, inside=inside, at=at))
    return found


def _memberships(root: Path) -> dict[str, str]:
    """Return controller -> group of this process; the unified hierarchy has the key ``""``."""
    groups: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                groups[controller] = parts[2]
    return groups


def folders(root: Path, controller: str) -> list[tuple[Version, Path]]:
    """Return the existing folders that limit ``controller`` for this process, its own group first."""
    groups = _memberships(root)
    found: list[tuple[Version, Path]] = []
    for mount in mounts(root):
        if mount.version == "cgroup v1" and controller not in mount.controllers:
            continue
        group = groups.get(controller if mount.version == "cgroup v1" else "")
        if group is None:
            continue
        base = root / mount.at.relative_to("/")
        try:
            inner = PurePosixPath(group).relative_to(mount.inside)
        except ValueError:
            inner = PurePosixPath()  # the group lies outside what is mounted: only the mount itself can be read
        if ".." in inner.parts:
            inner = PurePosixPath()
        for relative in (inner, *inner.parents):
            folder = base / relative
            if folder.is_dir() and (mount.version, folder) not in found:
                found.append((mount.version, folder))
    return found
