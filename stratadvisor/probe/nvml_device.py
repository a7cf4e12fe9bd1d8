"""One NVIDIA device, or one MIG slice, as the driver describes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratadvisor.catalog import devices as catalog
from stratadvisor.probe.files import read_int
from stratadvisor.probe.host_memory import meminfo
from stratadvisor.probe.nvml_health import answers, health
from stratadvisor.probe.nvml_query import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Answer, Nvml
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import DeviceProfile, MemoryUser

_SM_CLOCK, _GPU_SENSOR = 1, 0
_MEMORY_V2 = 0x02000028
_ADDRESSING_ATS = 2
_MODE_VGPU = 2
_VGPU_NAME = re.compile(r"-[0-9]+[ABCQ](?:\s|$)")
"""GRID and NVIDIA vGPU profiles end in size and kind: ``NVIDIA H100L-2-24C``, ``GRID T4-16Q``."""
_SHARED_MEMORY_PART = re.compile(r"\b(GB10|Thor|Orin|Xavier)\b", re.IGNORECASE)
_MIG_PROFILE = re.compile(r"MIG ((?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb\S*)")

THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvmlClocksEventReason bits; ``gpu_idle`` is kept, since an idle card lowers its clocks and its PCIe generation."""


@dataclass(slots=True)
class Found:
    """A device that NVML lists, before it gets its place in the order of the process."""

    number: int
    """NVML's own index."""
    handle: Any = None
    fields: dict[str, Any] = field(default_factory=dict)
    """Of DeviceProfile, without the index."""
    slices: list[Found] = field(default_factory=list)

    @property
    def uuid(self) -> str:
        """UUID, empty when it cannot be read."""
        return str(self.fields.get("uuid", ""))

    def profile(self, index: int) -> DeviceProfile:
        """Return the document, with its position in the order that the process sees."""
        return DeviceProfile(index=index, **self.fields)


def short_bus_id(text: str) -> str:
    """Return a bus id as sysfs spells it: ``00000000:17:00.0`` -> ``0000:17:00.0``."""
    match = re.fullmatch(r"(?:0000)?([0-9a-f]{4}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", text.strip().lower())
    return f"{match.group(1)}:{match.group(2)}" if match else text.strip().lower()


def _reading(answer: Answer, scale: float = 1.0) -> Reading:
    if answer.ok and answer.value is not None:
        return reported(float(answer.value) * scale, "driver")
    return unknown(f"the driver says: {answer.reason or 'nothing'}")


def _memory(nvml: Nvml, handle: Any) -> Answer:
    """Ask version 2, which keeps the driver's own share apart, then the first version."""
    answer = nvml.query("DeviceGetMemoryInfo", handle, _MEMORY_V2)
    return answer if answer.ok else nvml.query("DeviceGetMemoryInfo", handle)


def _process_name(nvml: Nvml, pid: int) -> str:
    name = nvml.value("SystemGetProcessName", pid)
    if not name:
        # NVML numbers processes as the host does; in a container the number may mean another process, or none.
        return ""
    return str(name).split()[0].rsplit("/", 1)[-1][:64]


def _users(nvml: Nvml, handle: Any) -> tuple[MemoryUser, ...]:
    users: dict[int, MemoryUser] = {}
    for kind in ("Compute", "Graphics"):
        answer = nvml.first(
            f"DeviceGet{kind}RunningProcesses_v3", f"DeviceGet{kind}RunningProcesses_v2", arguments=(handle,)
        )
        for process in answer.value or ():
            used = process.usedGpuMemory
            amount = unknown("the driver does not say") if used is None else reported(float(used), "driver")
            pid = int(process.pid)
            users.setdefault(pid, MemoryUser(pid=pid, name=_process_name(nvml, pid), used_bytes=amount))
    return tuple(users[pid] for pid in sorted(users))


def _numa_node(nvml: Nvml, handle: Any, bus_id: str, root: Path) -> int | None:
    """Return the processors' NUMA node nearest to the device; a GPU with memory of its own NUMA node has another."""
    node = read_int(root / "sys/bus/pci/devices" / bus_id / "numa_node") if bus_id else None
    if node is not None:
        return node if node >= 0 else None
    masks = nvml.value("DeviceGetMemoryAffinity", handle, 1, 0)
    return (int(masks[0]) & -int(masks[0])).bit_length() - 1 if masks is not None and int(masks[0]) else None


def _throttle(nvml: Nvml, handle: Any) -> tuple[str, ...]:
    bits = nvml.first(
        "DeviceGetCurrentClocksEventReasons", "DeviceGetCurrentClocksThrottleReasons", arguments=(handle,)
    ).value
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits and int(bits) & bit)


def _unified(name: str, memory: Answer, ats: bool) -> bool | None:
    spec = catalog.lookup(name)
    if spec is not None:
        return spec.unified_memory
    if memory.ok:
        return False
    return True if memory.code == NOT_SUPPORTED and (ats or _SHARED_MEMORY_PART.search(name)) else None


def catalogued(name: str, total: Reading) -> catalog.DeviceSpec | None:
    """Return the catalog's entry; its memory tells apart what the driver gives one name (RTX 4060 Ti: 8 or 16 GB)."""
    spec = catalog.lookup(name)
    if spec is None and total.value is not None:
        spec = catalog.lookup(f"{name} {round(total.value / 2**30)}GB")
    return spec


def _memory_readings(memory: Answer, unified: bool | None, root: Path) -> tuple[Reading, Reading]:
    """Return total and free bytes; a device without memory of its own has the host's."""
    if memory.ok:
        return reported(float(memory.value.total), "driver"), reported(float(memory.value.free), "driver")
    if unified and memory.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        host = meminfo(root)
        if "MemTotal" in host and "MemAvailable" in host:
            text = "of the host, which the device shares"
            return reported(host["MemTotal"], f"MemTotal {text}"), reported(
                host["MemAvailable"], f"MemAvailable {text}"
            )
    reason = unknown(f"the driver says: {memory.reason}")
    return reason, reason


def read_slice(nvml: Nvml, parent: Found, handle: Any, number: int) -> Found:
    """Return a MIG slice: memory and name are its own, the rest is its card's."""
    name, uuid = nvml.query("DeviceGetName", handle), nvml.query("DeviceGetUUID", handle)
    memory = _memory(nvml, handle)
    total, free = _memory_readings(memory, False, Path("/nonexistent"))
    if not total.known:
        attributes = nvml.value("DeviceGetAttributes_v2", handle)
        if attributes is not None and attributes.memorySizeMB:
            total = reported(float(attributes.memorySizeMB) * 1024**2, "driver, size of the slice")
    own_name = str(name.value) if name.ok else str(parent.fields["name"])
    match = _MIG_PROFILE.search(own_name)
    healthy, reason = answers(nvml, handle, {"name": name, "UUID": uuid})
    shared = ("kind", "compute_capability", "pci_bus_id", "numa_node", "ecc_enabled", "virtual", "throttle_reasons")
    links = ("pcie_generation_max", "pcie_generation_current", "pcie_width_max", "pcie_width_current")
    fields = {key: parent.fields[key] for key in (*shared, *links) if key in parent.fields}
    fields |= {
        "name": own_name,
        "catalog_key": None,
        "uuid": str(uuid.value) if uuid.ok else "",
        "memory_total_bytes": total,
        "memory_free_bytes": free,
        "memory_users": _users(nvml, handle),
        "unified_memory": False,
        "mig_enabled": True,
        "mig_profile": match.group(1) if match else "unknown",
        "healthy": healthy,
        "health_reason": reason,
    }
    return Found(number=number, handle=handle, fields=fields)


def _slices(nvml: Nvml, found: Found) -> list[Found]:
    most = nvml.value("DeviceGetMaxMigDeviceCount", found.handle) or 0
    slices = []
    for number in range(int(most)):
        handle = nvml.value("DeviceGetMigDeviceHandleByIndex", found.handle, number)
        if handle is not None:
            slices.append(read_slice(nvml, found, handle, number))
    return slices


def read_device(nvml: Nvml, number: int, handle: Any, root: Path) -> Found:
    """Return what the driver says of one device, its MIG slices with it."""
    name, uuid = nvml.query("DeviceGetName", handle), nvml.query("DeviceGetUUID", handle)
    pci, memory = nvml.query("DeviceGetPciInfo", handle), _memory(nvml, handle)
    mig = nvml.value("DeviceGetMigMode", handle)
    sliced = bool(mig[0]) if mig else None
    text = str(name.value) if name.ok else "unknown NVIDIA device"
    bus_text = pci.value.busId if pci.ok else ""
    bus_id = short_bus_id(bus_text.decode("ascii", "replace") if isinstance(bus_text, bytes) else str(bus_text))
    ats = nvml.value("DeviceGetAddressingMode", handle) == _ADDRESSING_ATS
    unified = _unified(text, memory, ats)
    total, free = _memory_readings(memory, unified, root)
    mode = nvml.query("DeviceGetVirtualizationMode", handle)
    virtual = int(mode.value) == _MODE_VGPU if mode.ok else (True if _VGPU_NAME.search(text) else None)
    ecc = nvml.value("DeviceGetEccMode", handle)
    spec = catalogued(text, total) if name.ok else None
    found = Found(number=number, handle=handle)
    found.fields = {
        "kind": "cuda",
        "name": text,
        "catalog_key": spec.key if spec is not None and not virtual else None,
        "uuid": str(uuid.value) if uuid.ok else "",
        "compute_capability": nvml.value("DeviceGetCudaComputeCapability", handle),
        "memory_total_bytes": total,
        "memory_free_bytes": free,
        "memory_users": _users(nvml, handle),
        "unified_memory": unified,
        "mig_enabled": sliced,
        "virtual": virtual,
        "ecc_enabled": bool(ecc[0]) if ecc else None,
        "pci_bus_id": bus_id,
        "pcie_generation_max": nvml.value("DeviceGetMaxPcieLinkGeneration", handle),
        "pcie_generation_current": nvml.value("DeviceGetCurrPcieLinkGeneration", handle),
        "pcie_width_max": nvml.value("DeviceGetMaxPcieLinkWidth", handle),
        "pcie_width_current": nvml.value("DeviceGetCurrPcieLinkWidth", handle),
        "numa_node": _numa_node(nvml, handle, bus_id, root),
        "clock_sm_hertz": _reading(nvml.query("DeviceGetClockInfo", handle, _SM_CLOCK), 1e6),
        "clock_sm_max_hertz": _reading(nvml.query("DeviceGetMaxClockInfo", handle, _SM_CLOCK), 1e6),
        "power_limit_watts": _reading(nvml.query("DeviceGetPowerManagementLimit", handle), 1e-3),
        "power_default_watts": _reading(nvml.query("DeviceGetPowerManagementDefaultLimit", handle), 1e-3),
        "temperature_celsius": _reading(
            nvml.first("DeviceGetTemperatureV", "DeviceGetTemperature", arguments=(handle, _GPU_SENSOR))
        ),
        "throttle_reasons": _throttle(nvml, handle),
    }
    found.slices = _slices(nvml, found) if sliced else []
    must = {"name": name, "UUID": uuid, "bus address": pci}
    if not (sliced or unified):
        must["memory"] = memory  # the card of MIG slices may refuse it to those who own but a slice
    healthy, reason = health(nvml, handle, must)
    if healthy and sliced and not found.slices:
        healthy, reason = False, "MIG is on and no slice can be seen: create one, or ask for access to it"
    found.fields |= {"healthy": healthy, "health_reason": reason}
    return found
