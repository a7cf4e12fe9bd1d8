from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cgroup_room import Room
from probe_trees import V2_MOUNT, meminfo, plant

from stratadvisor.probe import host_memory

GIB = 1024**3
LOOK = "from stratadvisor.probe import host_memory; print(host_memory.collect(environ={}).model_dump_json())"


def no_shared_memory(path: Path) -> tuple[int, int]:
    raise FileNotFoundError(2, "No such file or directory", str(path))


def test_a_90_gib_container_on_a_1007_gib_host(tmp_path: Path) -> None:
    files = meminfo(1056450248, 880000000) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "96636764160\n",
        "sys/fs/cgroup/memory.current": f"{10 * GIB}\n",
    }
    found = host_memory.collect(plant(tmp_path, files), {}, size_of=no_shared_memory)
    assert found.total_bytes.value == 1056450248 * 1024
    assert (found.limit_bytes.value, found.limited_by) == (96636764160, "cgroup v2")
    assert found.available_bytes.value == 96636764160 - 10 * GIB
    assert not found.shared_memory_total_bytes.known


def test_droppable_file_cache_does_not_count_as_used(tmp_path: Path) -> None:
    files = meminfo(64 * 2**20, 60 * 2**20) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/box/memory.current": f"{7 * GIB}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon {2 * GIB}\nfile {5 * GIB}\ninactive_file {4 * GIB}\n",
    }
    assert host_memory.collect(plant(tmp_path, files), {}).available_bytes.value == (8 - (7 - 4)) * GIB


def test_a_full_parent_leaves_less_than_an_empty_child_may_use(tmp_path: Path) -> None:
    files = meminfo(64 * 2**20, 60 * 2**20) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/memory.max": f"{8 * GIB}\n",
        "sys/fs/cgroup/pod/box/memory.current": "0\n",
        "sys/fs/cgroup/pod/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{13 * GIB}\n",
    }
    found = host_memory.collect(plant(tmp_path, files), {})
    assert (found.limit_bytes.value, found.available_bytes.value) == (8 * GIB, 3 * GIB)


def test_v1_limits_and_the_hierarchical_limit_of_parents_out_of_sight(tmp_path: Path) -> None:
    files = meminfo(64 * 2**20, 60 * 2**20) | {
        "proc/self/mountinfo": "40 39 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "proc/self/cgroup": "3:memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"hierarchical_memory_limit {4 * GIB}\ntotal_inactive_file {1 * GIB}\n",
    }
    found = host_memory.collect(plant(tmp_path, files), {})
    assert (found.limit_bytes.value, found.limited_by) == (4 * GIB, "cgroup v1")
    assert found.available_bytes.value == (4 - (3 - 1)) * GIB


@pytest.mark.parametrize("limit", ["max", "9223372036854771712", str(65 * GIB), "", "garbage"])
def test_a_limit_above_the_memory_or_none_is_no_limit(tmp_path: Path, limit: str) -> None:
    files = meminfo(64 * 2**20, 60 * 2**20) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": limit,
    }
    found = host_memory.collect(plant(tmp_path, files), {})
    assert (found.limit_bytes.value, found.limit_bytes.detail, found.limited_by) == (None, "no cgroup limit", "")
    assert found.available_bytes.value == 60 * GIB


def test_slurm_grants_memory_per_node_or_per_processor(tmp_path: Path) -> None:
    root = plant(tmp_path, meminfo(64 * 2**20, 60 * 2**20))
    job = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    per_node = host_memory.collect(root, job | {"SLURM_MEM_PER_NODE": "8192"})
    assert (per_node.limit_bytes.value, per_node.limited_by, per_node.available_bytes.value) == (
        8 * GIB,
        "slurm",
        8 * GIB,
    )
    per_cpu = host_memory.collect(root, job | {"SLURM_MEM_PER_CPU": "1024", "SLURM_CPUS_ON_NODE": "4"})
    assert per_cpu.limit_bytes.value == 4 * GIB
    everything = host_memory.collect(root, job | {"SLURM_MEM_PER_NODE": "0"})  # --mem=0 asks for all of it
    assert everything.limit_bytes.value is None


def test_shared_memory_and_memlock(tmp_path: Path) -> None:
    limits = "Limit            Soft Limit   Hard Limit   Units\nMax locked memory         {}   x  bytes\n"
    asked: list[Path] = []

    def sizes(path: Path) -> tuple[int, int]:
        asked.append(path)
        return 64 * 2**20, 60 * 2**20

    found = host_memory.collect(plant(tmp_path / "a", {"proc/self/limits": limits.format(65536)}), {}, size_of=sizes)
    assert (found.shared_memory_total_bytes.value, found.shared_memory_free_bytes.value) == (64 * 2**20, 60 * 2**20)
    assert asked == [tmp_path / "a/dev/shm"]
    assert found.memlock_bytes.value == 65536
    free = host_memory.collect(plant(tmp_path / "b", {"proc/self/limits": limits.format("unlimited")}), {})
    assert (free.memlock_bytes.value, free.memlock_bytes.detail) == (None, "unlimited")


def test_an_empty_root_gives_unknowns_and_never_a_zero(tmp_path: Path) -> None:
    found = host_memory.collect(tmp_path, {})
    for name in ("total_bytes", "available_bytes", "limit_bytes", "memlock_bytes", "swap_total_bytes"):
        reading = getattr(found, name)
        assert reading.value is None, name
        assert reading.detail, name


def test_on_this_machine_totals_agree_with_other_ways_to_ask() -> None:
    found = host_memory.collect(environ={})
    assert found.total_bytes.value == psutil.virtual_memory().total
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    assert found.memlock_bytes.value == (None if soft == resource.RLIM_INFINITY else soft)
    assert found.available_bytes.value is not None
    assert 0 < found.available_bytes.value < psutil.virtual_memory().total
    if Path("/dev/shm").is_dir():
        numbers = os.statvfs("/dev/shm")
        assert found.shared_memory_total_bytes.value == numbers.f_blocks * numbers.f_frsize


def test_on_this_machine_a_real_limit_is_found(cgroup_room: Callable[[str], Room]) -> None:
    limit, now = 2 * GIB, host_memory.collect(environ={})
    if min(psutil.virtual_memory().total, now.limit_bytes.value or float("inf")) <= limit:
        pytest.skip("this machine gives us less than the limit of this test")
    room = cgroup_room("memory")
    room.limit_memory(limit)
    found = json.loads(room.run(LOOK))
    assert (found["limit_bytes"]["value"], found["limited_by"]) == (limit, room.version)
    assert 0 < found["available_bytes"]["value"] <= limit
