"""A real control group with a limit, for tests on a machine that lets us make one."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

V1 = {"cpu": Path("/sys/fs/cgroup/cpu"), "memory": Path("/sys/fs/cgroup/memory")}
V2 = Path("/sys/fs/cgroup")


@dataclass
class Room:
    """A group below the root of its hierarchy; ``run`` starts Python inside it."""

    folder: Path
    version: str

    def limit_cores(self, cores: float) -> None:
        if self.version == "cgroup v1":
            (self.folder / "cpu.cfs_period_us").write_text("100000")
            (self.folder / "cpu.cfs_quota_us").write_text(str(int(cores * 100000)))
        else:
            (self.folder / "cpu.max").write_text(f"{int(cores * 100000)} 100000")

    def limit_memory(self, limit_bytes: int) -> None:
        name = "memory.limit_in_bytes" if self.version == "cgroup v1" else "memory.max"
        (self.folder / name).write_text(str(limit_bytes))

    def run(self, code: str) -> str:
        enter = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
        command = ["sh", "-c", enter, "sh", str(self.folder), sys.executable, "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def make_room(controller: str) -> Room | None:
    """Return a new group with the controller, or None where none can be made."""
    name = f"stratadvisor-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    v1 = V1[controller]
    try:
        if (v1 / "cgroup.procs").is_file():
            folder, version = v1 / name, "cgroup v1"
        elif controller in (V2 / "cgroup.subtree_control").read_text().split():
            folder, version = V2 / name, "cgroup v2"
        else:
            return None
        folder.mkdir()
    except OSError:
        return None
    room = Room(folder, version)
    try:
        room.run("print()")
    except (OSError, subprocess.SubprocessError):
        remove_room(room)
        return None
    return room


def remove_room(room: Room) -> None:
    """Remove a group whose processes have ended."""
    try:
        room.folder.rmdir()
    except OSError:
        return
