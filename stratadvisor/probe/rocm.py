"""AMD accelerators from the kernel's compute driver (KFD) and amdgpu's sysfs files, which need no library.

Kernel documentation: gpu/amdgpu (mem_info_vram_total, mem_info_vram_used, product_name, unique_id) and the topology
that KFD exports: a node with SIMD units is a GPU, ``gfx_target_version`` 90402 is gfx942, links of type 11 are xGMI.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.catalog import devices as catalog
from stratadvisor.probe.files import list_dir, read_int, read_line, read_text
from stratadvisor.probe.host_memory import meminfo
from stratadvisor.probe.nvml_absence import pci_gpus
from stratadvisor.probe.software import torch_build
from stratadvisor.probe.visible_devices import select
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import DeviceLink, DeviceProfile, Observation

AMD_VENDOR = "0x1002"
_LINK_XGMI = 11
_COMPUTE_CLASSES = ("0x0380", "0x0302", "0x1200")
_PCIE_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
"""GT/s -> generation, as in current_link_speed."""

Accelerators = tuple[tuple[DeviceProfile, ...], tuple[DeviceLink, ...], tuple[Observation, ...]]


def _properties(path: Path) -> dict[str, int]:
    pairs = re.findall(r"^(\w+) ([0-9]{1,20})$", read_text(path) or "", re.MULTILINE)
    return {name: int(value) for name, value in pairs}


def gfx_name(version: int) -> str:
    """Return the target of a ``gfx_target_version``: 90402 -> gfx942, 110000 -> gfx1100, 90010 -> gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _generation(text: str | None) -> int | None:
    match = re.match(r"([0-9]+\.[0-9]) GT/s", text or "")
    return _PCIE_GENERATIONS.get(match.group(1)) if match else None


def _memory(folder: Path, unified: bool | None, root: Path) -> tuple[Reading, Reading]:
    total, used = read_int(folder / "mem_info_vram_total"), read_int(folder / "mem_info_vram_used")
    host = meminfo(root)
    if unified and "MemTotal" in host and "MemAvailable" in host:
        text = "of the host, which the device shares"
        return reported(host["MemTotal"], f"MemTotal {text}"), reported(host["MemAvailable"], f"MemAvailable {text}")
    missing = unknown("amdgpu does not say")
    if total is None or total < 0:
        return missing, missing
    return reported(total, "amdgpu"), missing if used is None or used < 0 else reported(max(0, total - used), "amdgpu")


def _device(index: int, node: Path, properties: dict[str, int], root: Path) -> DeviceProfile:
    location, domain = properties.get("location_id", 0), properties.get("domain", 0)
    bus_id = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7:x}"
    folder = root / "sys/bus/pci/devices" / bus_id
    target = gfx_name(properties.get("gfx_target_version", 0))
    name = read_line(folder / "product_name") or read_line(node / "name") or target
    spec = catalog.lookup(name)
    unified = spec.unified_memory if spec else None
    total, free = _memory(folder, unified, root)
    numa = read_int(folder / "numa_node")
    unique = properties.get("unique_id", 0)
    return DeviceProfile(
        index=index,
        kind="rocm",
        name=name if name == target else f"{name} ({target})" if spec is None else name,
        catalog_key=spec.key if spec else None,
        uuid=f"GPU-{unique:016x}" if unique else "",
        memory_total_bytes=total,
        memory_free_bytes=free,
        unified_memory=unified,
        pci_bus_id=bus_id,
        pcie_generation_max=_generation(read_text(folder / "max_link_speed")),
        pcie_generation_current=_generation(read_text(folder / "current_link_speed")),
        pcie_width_max=read_int(folder / "max_link_width"),
        pcie_width_current=read_int(folder / "current_link_width"),
        numa_node=numa if numa is not None and numa >= 0 else None,
        healthy=True if folder.is_dir() else None,
        health_reason="" if folder.is_dir() else f"{bus_id} is not on the PCI bus as seen from here",
    )


def _links(nodes: list[tuple[int, Path]]) -> tuple[DeviceLink, ...]:
    """Return the links between listed devices; ``nodes`` are (index in the profile, KFD folder)."""
    index_of = {folder.name: index for index, folder in nodes}
    found = []
    for index, folder in nodes:
        types: dict[int | None, int | None] = {}
        for link in list_dir(folder / "io_links") + list_dir(folder / "p2p_links"):
            properties = _properties(link / "properties")
            types.setdefault(index_of.get(str(properties.get("node_to"))), properties.get("type"))
        for other, _ in nodes:
            if other > index:
                kind = types.get(other)
                is_fast = kind == _LINK_XGMI  # the schema's "nvlink" stands for any direct fabric of the vendor
                found.append(
                    DeviceLink(
                        device_a=index,
                        device_b=other,
                        kind="nvlink" if is_fast else "host_bridge" if kind is not None else "system",
                        peer_access=True if is_fast else None,
                    )
                )
    return tuple(found)


def _visible(uuids: list[str], environ: Mapping[str, str]) -> tuple[list[int], list[Observation]]:
    """Apply ROCR_VISIBLE_DEVICES to all, then HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) to what it left."""
    positions, notes = list(range(len(uuids))), []
    hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"
    for variable in ("ROCR_VISIBLE_DEVICES", hip):
        chosen = select(environ.get(variable), [uuids[p] for p in positions], variable=variable)
        positions = [positions[p] for p in chosen.positions]
        if chosen.complaint:
            notes.append(Observation(probe="rocm", status="failed", reason=chosen.complaint))
    return positions, notes


def collect(root: Path = Path("/"), environ: Mapping[str, str] | None = None) -> Accelerators:
    """Return AMD devices, links between them, and what went wrong; a reason in an observation when there are none."""
    environ = os.environ if environ is None else environ
    gpus: list[tuple[Path, dict[str, int]]] = []
    for node in list_dir(root / "sys/class/kfd/kfd/topology/nodes"):
        properties = _properties(node / "properties")
        if properties.get("simd_count", 0) > 0 and properties.get("vendor_id", 0x1002) == int(AMD_VENDOR, 16):
            gpus.append((node, properties))
    if not gpus:
        on_bus = len(pci_gpus(root, AMD_VENDOR, _COMPUTE_CLASSES))
        if on_bus:
            text = f"{on_bus} AMD accelerator(s) on the PCI bus, but the amdgpu compute driver (/dev/kfd) is not loaded"
            return (), (), (Observation(probe="rocm", status="failed", reason=text),)
        return (), (), (Observation(probe="rocm", status="unsupported", reason="no AMD compute device (no KFD node)"),)
    uuids = [f"GPU-{p['unique_id']:016x}" if p.get("unique_id") else "" for _, p in gpus]
    positions, notes = _visible(uuids, environ)
    chosen = [gpus[p] for p in positions]
    devices = tuple(_device(index, node, properties, root) for index, (node, properties) in enumerate(chosen))
    build = torch_build()
    if devices and "hip" not in build:
        text = "AMD devices are here, but the installed torch is no ROCm build: install torch for ROCm to use them"
        notes.append(Observation(probe="rocm", status="failed", reason=text))
    return devices, _links([(index, node) for index, (node, _) in enumerate(chosen)]), tuple(notes)
