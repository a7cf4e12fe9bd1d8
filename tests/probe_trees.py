"""Small recorded trees of /proc, /sys and /dev for tests of what the probe reads."""

from __future__ import annotations

from pathlib import Path

V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write every file of ``files`` (path -> text) below ``root``; a text that begins with -> becomes a link."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("->"):
            path.symlink_to(text[2:].strip())
        else:
            path.write_text(text)
    return root


def processors(
    count: int, *, threads_per_core: int = 1, sockets: int = 1, allowed: str | None = None
) -> dict[str, str]:
    """Return the files of a machine with ``count`` logical processors; threads of a core are half the count apart."""
    cores = count // threads_per_core
    files = {
        "sys/devices/system/cpu/online": f"0-{count - 1}\n",
        "proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed or f'0-{count - 1}'}\n",
        "proc/cpuinfo": "\n\n".join(
            f"processor\t: {cpu}\nmodel name\t: Some CPU @ 2.0GHz\nphysical id\t: 0" for cpu in range(count)
        ),
    }
    for cpu in range(count):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        core = cpu % cores
        siblings = ",".join(str(core + k * cores) for k in range(threads_per_core))
        files[f"{folder}/core_id"] = f"{core % (cores // sockets)}\n"
        files[f"{folder}/physical_package_id"] = f"{core * sockets // cores}\n"
        files[f"{folder}/thread_siblings_list"] = f"{siblings}\n"
    return files


def meminfo(total_kib: int, available_kib: int) -> dict[str, str]:
    """Return /proc/meminfo."""
    text = f"MemTotal:       {total_kib} kB\nMemFree:        1024 kB\nMemAvailable:   {available_kib} kB\n"
    return {"proc/meminfo": text + "SwapTotal:             0 kB\n"}
