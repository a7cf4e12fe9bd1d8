"""Which devices are measured, by whom: one lane, that is one child process, per rank-to-be."""

from __future__ import annotations

import os
from dataclasses import dataclass

from stratadvisor.probe.found import TorchDevice, TorchDevices
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import CpuProfile, DeviceProfile, HostMemoryProfile

MAX_CPU_DEVICES = 2
"""Ranks on a node without accelerators: two let every distributed path be tried, and more would only share the same
cores and memory bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One device that torch can use."""

    device_index: int
    """DeviceProfile.index."""
    torch_name: str
    """cpu or cuda:N (torch's own order)."""
    kind: str
    capability: tuple[int, int] | None = None
    memory_free_bytes: float | None = None


def usable_cores(cpu: CpuProfile) -> float:
    """Return the cores this process may use; the affinity mask where the sub-probe came to nothing."""
    if cpu.usable_cores.value is not None:
        return cpu.usable_cores.value
    return float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)


def threads_per_lane(cores: float, lanes: int) -> int:
    """Return the processor threads that each rank gets."""
    return max(1, int(cores / max(1, lanes)))


def _share(reading: Reading, parts: int, what: str) -> Reading:
    if reading.value is None:
        return reading
    return Reading(
        value=float(int(reading.value / parts)),
        origin="estimated",
        detail=f"1/{parts} of {what}" if parts > 1 else what,
    )


def cpu_devices(cpu: CpuProfile, memory: HostMemoryProfile) -> tuple[DeviceProfile, ...]:
    """Return the CPU as one or two devices, each with its share: one per whole core, at most two."""
    count = max(1, min(MAX_CPU_DEVICES, int(usable_cores(cpu))))
    total = memory.total_bytes
    if memory.limit_bytes.value is not None and (total.value is None or memory.limit_bytes.value < total.value):
        total = memory.limit_bytes
    no_clock = unknown("not read for a CPU")
    no_link = unknown("the device is the CPU itself: there is no link to cross")
    return tuple(
        DeviceProfile(
            index=index,
            kind="cpu",
            name=cpu.model_name or "CPU",
            memory_total_bytes=_share(total, count, "the host memory this process may use"),
            memory_free_bytes=_share(memory.available_bytes, count, "the available host memory"),
            unified_memory=True,
            mig_enabled=False,
            healthy=True,
            clock_sm_hertz=no_clock,
            clock_sm_max_hertz=no_clock,
            power_limit_watts=unknown("a CPU states no power limit"),
            power_default_watts=unknown("a CPU states no power limit"),
            temperature_celsius=no_clock,
            host_to_device_bytes_per_second=no_link,
            device_to_host_bytes_per_second=no_link,
        )
        for index in range(count)
    )


def torch_only_device(device: TorchDevice, kind: str) -> DeviceProfile:
    """Return the profile of a device that only torch knows of: no driver library answered."""
    return DeviceProfile(
        index=device.index,
        kind="rocm" if kind == "rocm" else "cuda",
        name=device.name,
        uuid=device.uuid,
        compute_capability=device.compute_capability,
        memory_total_bytes=reported(float(device.memory_total_bytes), "torch"),
        memory_free_bytes=(
            unknown("torch did not tell")
            if device.memory_free_bytes is None
            else reported(float(device.memory_free_bytes), "torch")
        ),
    )


def _same_uuid(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one.lower().removeprefix("gpu-") == other.lower().removeprefix("gpu-")


def accelerator_lanes(devices: tuple[DeviceProfile, ...], found: TorchDevices) -> tuple[Lane, ...]:
    """Match the driver's devices with torch's: by UUID, or, where it tells none, by position in lists of equal length.

    Devices that the driver lost get no lane; torch may count them or not.
    """
    listed = tuple(device for device in devices if device.kind == found.kind)
    healthy = tuple(device for device in listed if device.healthy is not False)
    in_order = next((some for some in (listed, healthy) if len(some) == len(found.devices)), ())
    by_uuid = {d.index: t for d in listed for t in found.devices if _same_uuid(t.uuid, d.uuid)}
    matches = by_uuid or {device.index: torch for device, torch in zip(in_order, found.devices, strict=False)}
    lanes: list[Lane] = []
    for device in healthy:
        match = matches.get(device.index)
        if match is not None:
            lanes.append(
                Lane(
                    device_index=device.index,
                    torch_name=f"cuda:{match.index}",
                    kind=device.kind,
                    capability=device.compute_capability or match.compute_capability,
                    memory_free_bytes=device.memory_free_bytes.value,
                )
            )
    return tuple(lanes)


def cpu_lanes(devices: tuple[DeviceProfile, ...]) -> tuple[Lane, ...]:
    """Return one lane per CPU device."""
    return tuple(
        Lane(device_index=d.index, torch_name="cpu", kind="cpu", memory_free_bytes=d.memory_free_bytes.value)
        for d in devices
    )
