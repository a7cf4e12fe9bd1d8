from __future__ import annotations

from pathlib import Path

import pytest
from probe_trees import meminfo, plant

from stratadvisor.probe import rocm

GIB = 1024**3


def gpu(node: int, bus: int, links: tuple[int, ...] = (), *, gfx: int = 90402, name: str = "") -> dict[str, str]:
    """Return the files of one AMD device: a KFD node and its PCI folder."""
    kfd = f"sys/class/kfd/kfd/topology/nodes/{node}"
    pci = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
    files = {
        f"{kfd}/properties": f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {gfx}\nvendor_id 4098\n"
        f"location_id {bus << 8}\ndomain 0\nunique_id {0xABC0 + node}\n",
        f"{kfd}/name": "aqua_vanjaram\n",
        f"{pci}/mem_info_vram_total": f"{192 * GIB}\n",
        f"{pci}/mem_info_vram_used": f"{2 * GIB}\n",
        f"{pci}/product_name": f"{name}\n",
        f"{pci}/numa_node": "1\n",
        f"{pci}/max_link_speed": "32.0 GT/s PCIe\n",
        f"{pci}/current_link_speed": "2.5 GT/s PCIe\n",
        f"{pci}/max_link_width": "16\n",
        f"{pci}/current_link_width": "16\n",
    }
    for number, (other, kind) in enumerate([(0, 2), *((o, 11) for o in links)]):
        files[f"{kfd}/io_links/{number}/properties"] = f"type {kind}\nnode_from {node}\nnode_to {other}\n"
    return files


def machine(tmp_path: Path, name: str = "AMD Instinct MI300X") -> Path:
    files = {"sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\n"}
    files |= gpu(1, 0x05, (2,), name=name) | gpu(2, 0x26, (1,), name=name) | gpu(3, 0x46, name=name)
    return plant(tmp_path, files | meminfo(2**30, 2**29))


def test_three_mi300x_of_which_two_are_linked(tmp_path: Path) -> None:
    devices, links, observations = rocm.collect(machine(tmp_path), {})
    assert [d.pci_bus_id for d in devices] == ["0000:05:00.0", "0000:26:00.0", "0000:46:00.0"]
    first = devices[0]
    assert (first.kind, first.name, first.catalog_key) == ("rocm", "AMD Instinct MI300X", "MI300X")
    assert (first.memory_total_bytes.value, first.memory_free_bytes.value) == (192 * GIB, 190 * GIB)
    assert (first.pcie_generation_max, first.pcie_generation_current, first.pcie_width_max) == (5, 1, 16)
    assert (first.numa_node, first.uuid, first.healthy) == (1, "GPU-000000000000abc1", True)
    kinds = {(link.device_a, link.device_b): link.kind for link in links}
    assert kinds == {(0, 1): "nvlink", (0, 2): "system", (1, 2): "system"}
    assert all("ROCm build" in o.reason for o in observations)


def test_a_card_without_a_product_name_keeps_its_target(tmp_path: Path) -> None:
    devices, _, _ = rocm.collect(machine(tmp_path, name=""), {})
    assert devices[0].name == "aqua_vanjaram (gfx942)"
    assert devices[0].catalog_key is None


@pytest.mark.parametrize(
    ("environ", "buses"),
    [
        ({}, ["05", "26", "46"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, ["46", "05"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, ["05"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-000000000000abc2"}, ["26"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["26"]),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, ["05"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visibility_is_applied_in_two_steps(tmp_path: Path, environ: dict[str, str], buses: list[str]) -> None:
    devices, _, _ = rocm.collect(machine(tmp_path), environ)
    assert [d.pci_bus_id[5:7] for d in devices] == buses
    assert [d.index for d in devices] == list(range(len(buses)))


def test_an_apu_shares_the_hosts_memory(tmp_path: Path) -> None:
    devices, _, _ = rocm.collect(machine(tmp_path, name="AMD Instinct MI300A"), {})
    assert devices[0].unified_memory is True
    assert devices[0].memory_total_bytes.value == 2**30 * 1024


@pytest.mark.parametrize(("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100")])
def test_targets_are_spelled_as_the_compiler_spells_them(version: int, name: str) -> None:
    assert rocm.gfx_name(version) == name


def test_no_device_and_no_driver_are_told_apart(tmp_path: Path) -> None:
    assert [o.status for o in rocm.collect(tmp_path / "empty", {})[2]] == ["unsupported"]
    pci = "sys/bus/pci/devices/0000:05:00.0"
    root = plant(tmp_path / "bare", {f"{pci}/vendor": "0x1002\n", f"{pci}/class": "0x120000\n"})
    devices, _, observations = rocm.collect(root, {})
    assert devices == ()
    assert [o.status for o in observations] == ["failed"]
    assert "/dev/kfd" in observations[0].reason
