"""Where a process of a host runs: as words before a command, or entered by a process that was forked."""

from __future__ import annotations

import ctypes
import os
import socket
from dataclasses import dataclass
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_REC, _MS_SLAVE, _MNT_DETACH = 0x4000, 0x80000, 2


def join_words(members: Path) -> list[str]:
    """Return what stands before a command that is to run in a control group."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(members)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Namespace, group and processors of one host."""

    host: str
    namespace: str
    members: Path | None
    """The control group's cgroup.procs; None without a cpu controller."""
    cores: tuple[int, ...] | None = None

    def words(self) -> list[str]:
        """Return what stands before a command.

        The group comes first: ``ip netns exec`` mounts a new /sys in which control groups are not to be seen.
        """
        join = [] if self.members is None else join_words(self.members)
        cores = [] if self.cores is None else ["taskset", "--cpu-list", ",".join(map(str, self.cores))]
        inside = ["sh", "-c", 'hostname "$0" && exec "$@"', self.host]
        return [
            *(*join, *cores),
            *("ip", "netns", "exec", self.namespace, "unshare", "--uts", *inside),
        ]

    def enter(self) -> None:
        """Move the calling process, which must have one thread, here for good; for children of ``os.fork``.

        As under ``ip netns exec``, it sees a /sys of its own with the host's network devices and no control groups.

        Raises:
            OSError: the place is gone, or the process may not enter it.

        """
        if self.members is not None:
            self.members.write_text(str(os.getpid()))
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)
        library = ctypes.CDLL(None, use_errno=True)

        def checked(result: int) -> None:
            if result:
                code = ctypes.get_errno()
                raise OSError(code, f"cannot enter {self.namespace}: {os.strerror(code)}")

        handle = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
        try:
            checked(library.setns(handle, _CLONE_NEWNET))
        finally:
            os.close(handle)
        checked(library.unshare(_CLONE_NEWUTS | _CLONE_NEWNS))
        checked(library.mount(b"", b"/", b"none", ctypes.c_ulong(_MS_SLAVE | _MS_REC), None))
        checked(library.umount2(b"/sys", _MNT_DETACH))
        checked(library.mount(self.namespace.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None))
        socket.sethostname(self.host)
