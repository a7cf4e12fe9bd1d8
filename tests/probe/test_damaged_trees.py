"""Whatever stands in a kernel file, looking raises nothing, and what is found is a document that can be stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_trees import V2_MOUNT, meminfo, plant, processors

from stratadvisor.probe import files, host_cpu, host_memory, nics, nvml_absence, rocm, software
from stratadvisor.schema.profile import NodeProfile

DAMAGE = [
    b"",
    b"\x00\xff\xfe",
    b"-1\n",
    b"99999999999999999999999999\n",
    b"max\n",
    b"a b c : - x\n" * 3,
    b"0-99999999\n",
]


def tree() -> dict[str, str]:
    """Return a machine with control groups of both versions, an interface, InfiniBand and a GPU of either vendor."""
    net, kfd = "sys/class/net/eth0", "sys/class/kfd/kfd/topology/nodes/1"
    return (
        processors(2)
        | meminfo(2**22, 2**21)
        | {
            "proc/self/mountinfo": f"{V2_MOUNT}\n40 39 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            "proc/self/cgroup": "0::/box\n3:memory:/box\n",
            "proc/self/limits": "Max locked memory  65536  65536  bytes\n",
            "sys/fs/cgroup/box/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/box/memory.max": "1000000000\n",
            "sys/fs/cgroup/box/memory.stat": "inactive_file 1000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "900000000\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "1000\n",
            f"{net}/speed": "1000\n",
            f"{net}/type": "1\n",
            f"{net}/operstate": "up\n",
            f"{net}/device/numa_node": "0\n",
            "sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n",
            "sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            f"{kfd}/properties": "simd_count 8\ngfx_target_version 90402\nvendor_id 4098\nlocation_id 1280\ndomain 0\n",
            f"{kfd}/name": "x\n",
            "sys/bus/pci/devices/0000:05:00.0/mem_info_vram_total": "1000\n",
            "sys/bus/pci/devices/0000:05:00.0/max_link_speed": "16.0 GT/s PCIe\n",
            "proc/driver/nvidia/gpus/0000:21:00.0/information": "Model: \t NVIDIA L4\nGPU UUID: \t GPU-1\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat\n",
        }
    )


def see_all(root: Path) -> NodeProfile:
    devices, links, _ = rocm.collect(root, {})
    nvml_absence.kernel_gpus(root)
    return NodeProfile(
        hostname="node",
        devices=devices,
        links=links,
        cpu=host_cpu.collect(root, {}),
        host_memory=host_memory.collect(root, {}),
        nics=nics.collect(root),
        software=software.collect(root),
    )


def test_the_whole_tree_is_read(tmp_path: Path) -> None:
    seen = see_all(plant(tmp_path, tree()))
    assert (seen.cpu.usable_cores.value, seen.host_memory.limit_bytes.value) == (1.0, 900000000)
    assert [nic.name for nic in seen.nics] == ["eth0", "mlx5_0"]
    assert len(seen.devices) == 1
    assert seen.software.versions["driver"] == "535.161.07"


@pytest.mark.parametrize("damage", DAMAGE)
def test_any_one_damaged_file_raises_nothing(tmp_path: Path, damage: bytes) -> None:
    root = plant(tmp_path, tree())
    for name, text in tree().items():
        (root / name).write_bytes(damage)
        seen = see_all(root)
        assert NodeProfile.model_validate_json(seen.model_dump_json()) == seen, name
        assert seen.cpu.usable_cores.value != 0, name
        (root / name).write_text(text)


def test_a_folder_where_a_file_should_be_raises_nothing(tmp_path: Path) -> None:
    for number, name in enumerate(tree()):
        root = plant(tmp_path / str(number), {k: v for k, v in tree().items() if k != name})
        (root / name).mkdir(parents=True)
        see_all(root)


@pytest.mark.parametrize("read", [files.read_text, files.read_line, files.read_int, files.list_dir, files.link_name])
def test_a_path_with_a_null_byte_is_nothing(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    assert not read(tmp_path / "a\0b")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.text(alphabet="0123456789,- x\n", max_size=60))
def test_a_kernel_list_is_numbers_or_nothing(text: str) -> None:
    assert all(number >= 0 for number in files.parse_cpu_list(text))


def test_lists_and_counts_read_as_the_kernel_writes_them() -> None:
    assert files.parse_cpu_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert files.parse_cpu_list("") == frozenset()
    assert files.parse_count("16") == 16
    assert [files.parse_count(text) for text in ("", "-1", "1.5", "\u00b2", "9" * 30, None)] == [None] * 6
