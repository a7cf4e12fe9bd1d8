from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cgroup_room import Room
from probe_trees import V2_MOUNT, plant, processors

from stratadvisor.probe import host_cpu

LOOK = "from stratadvisor.probe import host_cpu; print(host_cpu.collect(environ={}).model_dump_json())"


@pytest.mark.parametrize(("quota", "cores"), [("200000 100000", 2.0), ("50000 100000", 0.5), ("150000 100000", 1.5)])
def test_a_container_quota_binds_before_the_64_processors_of_the_host(tmp_path: Path, quota: str, cores: float) -> None:
    files = processors(64) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{quota}\n",
    }
    found = host_cpu.collect(plant(tmp_path, files), {})
    assert (found.usable_cores.value, found.limited_by) == (cores, "cgroup v2")
    assert (found.logical_cpus, found.physical_cores, found.usable_cores.origin) == (64, 64, "reported")


def test_a_parent_group_limits_its_children(tmp_path: Path) -> None:
    files = processors(16) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/job/step/task\n",
        "sys/fs/cgroup/job/step/task/cpu.max": "max 100000\n",
        "sys/fs/cgroup/job/step/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/job/cpu.max": "300000 100000\n",
    }
    assert host_cpu.collect(plant(tmp_path, files), {}).usable_cores.value == 3.0


def test_v1_quota_of_a_container_whose_own_group_is_what_is_mounted(tmp_path: Path) -> None:
    files = processors(8) | {
        "proc/self/mountinfo": "40 39 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    found = host_cpu.collect(plant(tmp_path, files), {})
    assert (found.usable_cores.value, found.limited_by) == (2.5, "cgroup v1")


def test_a_group_inside_a_container_is_found_below_the_mount(tmp_path: Path) -> None:
    files = processors(8) | {
        "proc/self/mountinfo": "40 39 0:30 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
        "proc/self/cgroup": "4:cpu:/docker/abc/job\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
    }
    assert host_cpu.collect(plant(tmp_path, files), {}).usable_cores.value == 1.0


def test_a_group_outside_what_is_mounted_falls_back_to_the_mount(tmp_path: Path) -> None:
    files = processors(8) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/../../elsewhere\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    assert host_cpu.collect(plant(tmp_path, files), {}).usable_cores.value == 4.0


def test_no_quota_is_no_limit(tmp_path: Path) -> None:
    v1 = {
        "proc/self/mountinfo": "40 39 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        "proc/self/cgroup": "4:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    found = host_cpu.collect(plant(tmp_path, processors(8) | v1), {})
    assert (found.usable_cores.value, found.limited_by) == (8.0, "")


def test_affinity_threads_and_sockets(tmp_path: Path) -> None:
    files = processors(32, threads_per_core=2, sockets=2, allowed="0-3,16-19")
    files |= {f"sys/devices/system/node/node{n}/cpulist": f"{8 * n}-{8 * n + 7}\n" for n in range(2)}
    files |= {"sys/devices/system/node/node2/cpulist": "\n"}  # the memory of a coherent GPU
    found = host_cpu.collect(plant(tmp_path, files), {})
    assert (found.usable_cores.value, found.limited_by) == (8.0, "affinity")
    assert (found.logical_cpus, found.physical_cores, found.num_sockets, found.num_numa_nodes) == (32, 16, 2, 2)


@pytest.mark.parametrize(
    ("environ", "cores", "by"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "6"}, 6.0, "slurm"),
        ({"SLURM_CPUS_ON_NODE": "6"}, 16.0, ""),  # left over in the environment, no job
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2"}, 16.0, ""),  # salloc: still on the login node
        (
            {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS_PER_NODE": "4"},
            8.0,
            "slurm",
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "many"}, 16.0, ""),
    ],
)
def test_what_slurm_granted_binds(tmp_path: Path, environ: dict[str, str], cores: float, by: str) -> None:
    found = host_cpu.collect(plant(tmp_path, processors(16)), environ)
    assert (found.usable_cores.value, found.limited_by) == (cores, by)


def test_arm_processors_are_named_by_part(tmp_path: Path) -> None:
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {}\n"
    grace = plant(tmp_path / "a", {"proc/cpuinfo": text.format("0xd4f")})
    other = plant(tmp_path / "b", {"proc/cpuinfo": text.format("0xfff")})
    assert host_cpu.collect(grace, {}).model_name == "Neoverse-V2"
    assert host_cpu.collect(other, {}).model_name == "Arm implementer 0x41 part 0xfff"


def test_an_empty_root_gives_unknowns_with_a_reason(tmp_path: Path) -> None:
    found = host_cpu.collect(tmp_path, {})
    assert (found.usable_cores.value, found.logical_cpus, found.model_name) == (None, None, "")
    assert "could be read" in found.usable_cores.detail


@pytest.mark.parametrize("text", ["", "max", "x y", "0 0", "-5 100000", "100000", "9" * 400])
def test_a_damaged_quota_is_no_crash_and_no_zero(tmp_path: Path, text: str) -> None:
    files = processors(4) | {
        "proc/self/mountinfo": V2_MOUNT + "\nbroken line\n - \n",
        "proc/self/cgroup": "0::/\nnonsense\n",
        "sys/fs/cgroup/cpu.max": text,
    }
    value = host_cpu.collect(plant(tmp_path, files), {}).usable_cores.value
    assert value is not None
    assert 0 < value <= 4


def test_on_this_machine_affinity_of_one_is_one_usable_core_or_less() -> None:
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}}); {LOOK}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    cores = json.loads(result.stdout)["usable_cores"]["value"]
    assert 0 < cores <= 1


def test_on_this_machine_a_real_quota_is_found(cgroup_room: Callable[[str], Room]) -> None:
    room = cgroup_room("cpu")
    room.limit_cores(0.5)
    found = json.loads(room.run(LOOK))
    outside = host_cpu.collect(environ={}).usable_cores.value
    assert outside is not None
    assert found["usable_cores"]["value"] == min(0.5, outside)
    assert found["limited_by"] == room.version


def test_on_this_machine_the_count_agrees_with_the_kernel() -> None:
    found = host_cpu.collect(environ={})
    assert found.logical_cpus == os.sysconf("SC_NPROCESSORS_ONLN")
    assert found.usable_cores.value is not None
    assert 0 < found.usable_cores.value <= len(os.sched_getaffinity(0))
    if found.limited_by in ("", "affinity"):
        assert found.usable_cores.value == len(os.sched_getaffinity(0))
    assert found.model_name
