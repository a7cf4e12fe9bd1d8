"""The processors this process may use: affinity, control-group quota and Slurm's grant against what is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.probe import cgroups
from stratadvisor.probe.files import list_dir, parse_count, parse_cpu_list, read_int, read_text, status_field
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.profile import CpuProfile

ARM_PARTS = {
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd84"): "Neoverse-V3",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd8e"): "Neoverse-N3",
    ("0xc0", "0xac3"): "Ampere-1",
}
"""Implementer and part number -> core, as in Arm's technical reference manuals; /proc/cpuinfo gives no name there."""


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    blocks = []
    for text in (read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, _, value in pairs}
        if block:
            blocks.append(block)
    return blocks


def _model_name(blocks: list[dict[str, str]]) -> str:
    for block in blocks:
        for key in ("model name", "cpu model", "cpu"):
            if block.get(key):
                return block[key]
        part = (block.get("CPU implementer", ""), block.get("CPU part", ""))
        if part in ARM_PARTS:
            return ARM_PARTS[part]
        if all(part):
            return f"Arm implementer {part[0]} part {part[1]}"
    return ""


def _topology(root: Path, blocks: list[dict[str, str]]) -> tuple[int | None, int | None, int | None]:
    """Return logical processors that are online, physical cores and sockets."""
    base = root / "sys/devices/system/cpu"
    online = parse_cpu_list(read_text(base / "online") or "")
    if not online:
        online = frozenset(int(b["processor"]) for b in blocks if b.get("processor", "").isdigit())
    cores, sockets = set(), set()
    for cpu in online:
        core = read_int(base / f"cpu{cpu}/topology/core_id")
        socket = read_int(base / f"cpu{cpu}/topology/physical_package_id")
        if core is None or socket is None:
            break
        siblings = read_text(base / f"cpu{cpu}/topology/thread_siblings_list")
        cores.add((socket, core, siblings))  # core_id repeats between clusters on some Arm and AMD machines
        sockets.add(socket)
    else:
        return len(online) or None, len(cores) or None, len(sockets) or None
    pairs = {(b.get("physical id"), b.get("core id")) for b in blocks if "core id" in b}
    packages = {b["physical id"] for b in blocks if "physical id" in b}
    return len(online) or None, len(pairs) or None, len(packages) or None


def _numa_nodes(root: Path) -> int | None:
    """Return the NUMA nodes that have processors (memory of a coherent GPU is a node without any)."""
    folders = [p for p in list_dir(root / "sys/devices/system/node") if p.name[4:].isdigit() and p.name[:4] == "node"]
    return sum(1 for p in folders if read_text(p / "cpulist")) or None


def quota_cores(root: Path) -> tuple[float, cgroups.Version] | None:
    """Return the smallest processor quota of the group and its parents in cores, and whose it is."""
    best: tuple[float, cgroups.Version] | None = None
    for version, folder in cgroups.folders(root, "cpu"):
        if version == "cgroup v2":
            words = (read_text(folder / "cpu.max") or "").split()
            quota = parse_count(words[0]) if words else None  # "max" is no number
            period = parse_count(words[1]) if len(words) > 1 else 100_000
        else:
            quota = read_int(folder / "cpu.cfs_quota_us")
            period = read_int(folder / "cpu.cfs_period_us")
        if quota is None or quota <= 0 or not period:
            continue
        if best is None or quota / period < best[0]:
            best = (quota / period, version)
    return best


def slurm_cores(environ: Mapping[str, str]) -> int | None:
    """Return the processors that Slurm granted this job on this node; None outside a job."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    on_node = parse_count(environ.get("SLURM_CPUS_ON_NODE"))
    if on_node:
        return on_node
    # Without SLURMD_NODENAME the process may still sit on the login node, where the grant does not apply.
    if not environ.get("SLURMD_NODENAME"):
        return None
    per_task = parse_count(environ.get("SLURM_CPUS_PER_TASK"))
    tasks = parse_count(environ.get("SLURM_NTASKS_PER_NODE", "1"))
    return (per_task or 0) * (tasks or 0) or None


def collect(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> CpuProfile:
    """Return what the processors are and how many cores this process may use, with what sets the number."""
    environ = os.environ if environ is None else environ
    blocks = _cpuinfo(root)
    logical, physical, sockets = _topology(root, blocks)
    limits: list[tuple[float, str]] = [] if logical is None else [(float(logical), "")]
    allowed = parse_cpu_list(status_field(root, "Cpus_allowed_list") or "")
    if allowed:
        limits.append((float(len(allowed)), "affinity"))
    quota = quota_cores(root)
    if quota is not None:
        limits.append(quota)
    granted = slurm_cores(environ)
    if granted is not None:
        limits.append((float(granted), "slurm"))
    usable = unknown("neither /proc/self/status nor /sys/devices/system/cpu could be read")
    limited_by = ""
    if limits:
        cores, limited_by = min(limits, key=lambda limit: limit[0])  # the first wins a tie: no limit before a limit
        usable = reported(cores, ", ".join(f"{source or 'online'} {value:g}" for value, source in limits))
    return CpuProfile(
        model_name=_model_name(blocks),
        usable_cores=usable,
        limited_by=limited_by,
        logical_cpus=logical,
        physical_cores=physical,
        num_sockets=sockets,
        num_numa_nodes=_numa_nodes(root),
    )
