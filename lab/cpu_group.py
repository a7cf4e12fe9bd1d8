"""A control group per host that cuts its processor time: version 1 (cfs quota) or 2 (cpu.max)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError

PERIOD_SECONDS = 0.01
"""Short against a training step: the usual 0.1 s would show as bursts."""
_MOUNTS = Path("/proc/self/mounts")
_WEIGHT_SHARE = 64
"""The groups get this multiple of the usual weight, so that other programs on the machine disturb a host least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """Where the cpu controller is mounted."""

    folder: Path
    version: int


def controller(mounts: Path = _MOUNTS) -> Controller | None:
    """Return the mounted cpu controller; None when there is none."""
    for line in mounts.read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(folder=Path(folder), version=1)
        if kind == "cgroup2":
            offered = Path(folder) / "cgroup.controllers"
            if offered.is_file() and "cpu" in offered.read_text().split():
                return Controller(folder=Path(folder), version=2)
    return None


class CpuGroup:
    """The group of one host."""

    def __init__(self, where: Controller, name: str) -> None:
        self.version = where.version
        self.path = where.folder / name
        try:
            if self.version == 2:
                control = where.folder / "cgroup.subtree_control"
                if "cpu" not in control.read_text().split():
                    control.write_text("+cpu")
            self.path.mkdir()
            if self.version == 1:
                (self.path / "cpu.shares").write_text(str(1024 * _WEIGHT_SHARE))
            else:
                (self.path / "cpu.weight").write_text(str(min(10000, 100 * _WEIGHT_SHARE)))
        except OSError as problem:
            raise LabError(f"no control group {self.path}: {problem.strerror}") from None

    @property
    def members(self) -> Path:
        """The file that takes the numbers of processes."""
        return self.path / "cgroup.procs"

    def limit(self, processors: float | None) -> None:
        """Allow so much processor time, also while processes run; None: no limit."""
        period = int(PERIOD_SECONDS * 1e6)
        while processors is not None and processors * period < 1000:  # the kernel's least quota is 1 ms
            period *= 2
        if self.version == 1:
            quota = -1 if processors is None else round(processors * period)
            (self.path / "cpu.cfs_quota_us").write_text("-1")  # or a new period might not fit the old quota
            (self.path / "cpu.cfs_period_us").write_text(str(period))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            words = "max" if processors is None else str(round(processors * period))
            (self.path / "cpu.max").write_text(f"{words} {period}")


def group_pids(path: Path) -> list[int]:
    """Return the processes in a group; none when it is gone."""
    try:
        return [int(word) for word in (path / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove_group(path: Path, limit_seconds: float = 5.0) -> None:
    """Remove an empty group; processes that were killed a moment ago may still be on their way out."""
    end = time.monotonic() + limit_seconds
    while path.is_dir():
        try:
            path.rmdir()
        except OSError as problem:
            if time.monotonic() > end:
                raise LabError(f"control group {path} cannot be removed: {problem.strerror}") from None
            time.sleep(0.02)
