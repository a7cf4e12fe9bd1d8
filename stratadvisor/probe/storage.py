"""Write and read rate of a path with the page cache kept out, and the space that is left.

The file has no name (it is unlinked at once), so nothing is left whatever happens. Reading uses O_DIRECT; where the
file system refuses it, the cached pages are dropped first (posix_fadvise).
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import time
from pathlib import Path

from stratadvisor.probe.found import StorageRates

_MIB = 1024**2
_BLOCK_BYTES = 4 * _MIB
FILE_BYTES = 256 * _MIB
QUICK_FILE_BYTES = 8 * _MIB
_LEAST_READ_BYTES = 1 * _MIB


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the type of the file system that holds ``path``, from the text of /proc/self/mounts."""
    best, kind = "", ""
    resolved = str(path)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _bypass_cache(descriptor: int) -> str:
    """Switch the page cache off for reading, and return how."""
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | direct)
            probe = mmap.mmap(-1, 4096)
            os.preadv(descriptor, [probe], 0)
            return "read with O_DIRECT"
        except OSError:
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~direct)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return "read after its cached pages were dropped"
    return "read through the page cache: too high if the file was cached"


def _read_rate(descriptor: int, size: int, budget: float) -> tuple[float | None, str]:
    if size < _LEAST_READ_BYTES:
        return None, f"the file has only {size} bytes, too few to time"
    how = _bypass_cache(descriptor)
    block = mmap.mmap(-1, _BLOCK_BYTES)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < budget or done == 0:
        got = os.preadv(descriptor, [block], done)
        done += got
        if got < _BLOCK_BYTES:
            break
    return done / max(time.perf_counter() - begin, 1e-9), f"{done // _MIB} MiB {how}"


def _write(descriptor: int, size: int, budget: float) -> tuple[int, float]:
    """Write random blocks until ``size`` or the budget is reached; return bytes and rate, fsync included."""
    block = os.urandom(_BLOCK_BYTES)  # random: a file system that compresses or deduplicates gains nothing
    done, begin = 0, time.perf_counter()
    while done < size and (time.perf_counter() - begin < budget or done < _LEAST_READ_BYTES):
        shift = (done // _BLOCK_BYTES * 4099) % _BLOCK_BYTES
        done += os.write(descriptor, block[shift:] + block[:shift])
    os.fsync(descriptor)
    return done, done / max(time.perf_counter() - begin, 1e-9)


def measure(path: str, budget_seconds: float = 2.5, quick: bool = False) -> StorageRates:
    """Measure a directory by a file of its own, or an existing file by reading it.

    Raises:
        OSError: the path does not exist or cannot be used.

    """
    place = Path(path).resolve(strict=True)
    usage = os.statvfs(place)
    free = usage.f_bavail * usage.f_frsize
    try:
        kind = filesystem_of(place, Path("/proc/self/mounts").read_text())
    except OSError:
        kind = ""
    write_rate: float | None = None
    if place.is_dir():
        size = min(QUICK_FILE_BYTES if quick else FILE_BYTES, free // 20)
        with tempfile.TemporaryFile(dir=place, prefix=".stratadvisor-", buffering=0) as file:
            if size < _LEAST_READ_BYTES:
                detail = read_detail = f"only {free} bytes are free"
                read_rate = None
            else:
                written, write_rate = _write(file.fileno(), size, budget_seconds / 2)
                detail = f"{written // _MIB} MiB written and flushed (fsync)"
                read_rate, read_detail = _read_rate(file.fileno(), written, budget_seconds / 2)
    else:
        detail = "the path is a file: it is only read"
        with place.open("rb", buffering=0) as file:
            read_rate, read_detail = _read_rate(file.fileno(), place.stat().st_size, budget_seconds)
    if kind in ("tmpfs", "ramfs"):
        read_detail += f" ({kind}: this is memory, not a disk)"
    return StorageRates(
        path=str(place),
        filesystem=kind,
        free_bytes=free,
        read_bytes_per_second=read_rate,
        read_detail=read_detail,
        write_bytes_per_second=write_rate,
        write_detail=detail,
    )
