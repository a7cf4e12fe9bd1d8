"""Memory of the host that this process may use: what is free, and what control groups and Slurm leave of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from stratadvisor.probe import cgroups
from stratadvisor.probe.files import parse_count, read_int, read_text
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import HostMemoryProfile

MIB = 1024**2


def filesystem_size(path: Path) -> tuple[int, int]:
    """Return total and free bytes of the file system that holds ``path``; OSError when it is not there."""
    numbers = os.statvfs(path)
    return numbers.f_blocks * numbers.f_frsize, numbers.f_bavail * numbers.f_frsize


def meminfo(root: Path) -> dict[str, int]:
    """Return the fields of ``/proc/meminfo`` in bytes."""
    pairs = re.findall(r"^(\w+):\s+([0-9]{1,18}) kB$", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(value) * 1024 for name, value in pairs}


def _stat_field(folder: Path, name: str) -> int | None:
    match = re.search(rf"^{name} ([0-9]{{1,20}})$", read_text(folder / "memory.stat") or "", re.MULTILINE)
    return int(match.group(1)) if match else None


def _level(version: cgroups.Version, folder: Path) -> tuple[int | None, int | None]:
    """Return the limit of one group and the bytes it uses that cannot simply be dropped.

    File cache on the inactive list is dropped before anything is killed, so it does not count as used
    (the "working set" of Kubernetes).
    """
    if version == "cgroup v2":
        found = [read_int(folder / name) for name in ("memory.max", "memory.high")]  # "max" reads as None
        used, cache = read_int(folder / "memory.current"), _stat_field(folder, "inactive_file")
    else:
        found = [read_int(folder / "memory.limit_in_bytes"), _stat_field(folder, "hierarchical_memory_limit")]
        used, cache = read_int(folder / "memory.usage_in_bytes"), _stat_field(folder, "total_inactive_file")
    limits = [limit for limit in found if limit is not None and limit >= 0]  # below zero: no limit
    return min(limits, default=None), None if used is None else max(0, used - (cache or 0))


def _slurm_bytes(environ: Mapping[str, str]) -> int | None:
    """Return the memory that Slurm granted on this node (its variables are in MiB); None for none or all of it."""
    if not environ.get("SLURM_JOB_ID") or not environ.get("SLURMD_NODENAME"):
        return None
    per_node, per_cpu = (parse_count(environ.get(f"SLURM_MEM_PER_{unit}")) for unit in ("NODE", "CPU"))
    cpus = parse_count(environ.get("SLURM_CPUS_ON_NODE"))
    return (per_node or (per_cpu or 0) * (cpus or 0)) * MIB or None


def _memlock(root: Path) -> Reading:
    match = re.search(r"^Max locked memory\s+(\S+)", read_text(root / "proc/self/limits") or "", re.MULTILINE)
    if match is None:
        return unknown("/proc/self/limits could not be read")
    limit = parse_count(match.group(1))
    return unknown(match.group(1)) if limit is None else reported(limit, "RLIMIT_MEMLOCK")


def _shared_memory(root: Path, size_of: Callable[[Path], tuple[int, int]]) -> tuple[Reading, Reading]:
    try:
        total, free = size_of(root / "dev/shm")
    except OSError as error:
        reason = unknown(f"shared memory: {error.strerror or error}")
        return reason, reason
    return reported(total, "size of /dev/shm"), reported(free, "free in /dev/shm")


def collect(
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    *,
    size_of: Callable[[Path], tuple[int, int]] = filesystem_size,
) -> HostMemoryProfile:
    """Return the host's memory, the limit on it and what is available under that limit, all in bytes."""
    environ = os.environ if environ is None else environ
    fields = meminfo(root)
    total, free = fields.get("MemTotal"), fields.get("MemAvailable", fields.get("MemFree"))
    limit, limited_by = total, ""
    available, because = free, "MemAvailable"
    for version, folder in cgroups.folders(root, "memory"):
        bound, used = _level(version, folder)
        if bound is None:
            continue
        if limit is None or bound < limit:  # v1 writes "no limit" as a number near 2^63: above any memory
            limit, limited_by = bound, version
        left = max(0, bound - (used or 0))
        if available is None or left < available:
            available, because = left, f"what the {version} limit leaves after {used or 0} bytes in use"
    granted = _slurm_bytes(environ)
    if granted is not None and (limit is None or granted < limit):
        limit, limited_by = granted, "slurm"
        if available is None or granted < available:
            available, because = granted, "granted by Slurm"
    shared_total, shared_free = _shared_memory(root, size_of)
    missing = unknown("/proc/meminfo could not be read")
    return HostMemoryProfile(
        total_bytes=missing if total is None else reported(total, "MemTotal"),
        available_bytes=missing if available is None else reported(available, because),
        limit_bytes=reported(limit, limited_by) if limited_by and limit is not None else unknown("no cgroup limit"),
        limited_by=limited_by,
        shared_memory_total_bytes=shared_total,
        shared_memory_free_bytes=shared_free,
        memlock_bytes=_memlock(root),
        swap_total_bytes=reported(fields["SwapTotal"], "SwapTotal") if "SwapTotal" in fields else missing,
    )
