"""How the GPUs of a node reach each other: NVLink by link, PCIe by the nearest common point, peer access by status."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratadvisor.probe.nvml_device import Found, short_bus_id
from stratadvisor.probe.nvml_query import Nvml
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import DeviceLink, LinkKind

_MAX_LINKS = 36
_DEVICE_TYPE_SWITCH = 2
_FIELD_LINK_SPEED = 90
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: rate of each active link, MB/s, one direction."""
_READ, _WRITE, _P2P_OK = 0, 1, 0
"""Plain numbers: the binding's NVML_P2P_CAPS_INDEX_READ is a tuple by mistake, which ctypes refuses."""
_ANCESTORS: dict[int, LinkKind] = {
    0: "pcie_switch",  # two GPUs of one board
    10: "pcie_switch",
    20: "pcie_switch",
    30: "host_bridge",
    40: "numa",
    50: "system",
}
"""nvmlGpuTopologyLevel_t."""


def _nvlinks(nvml: Nvml, handle: Any, bus_ids: set[str]) -> tuple[Counter[str], int]:
    """Return active links by the neighbour's bus id, and the number that go to a switch."""
    direct: Counter[str] = Counter()
    switched = 0
    for link in range(_MAX_LINKS):
        if not nvml.value("DeviceGetNvLinkState", handle, link):
            continue  # down, or a link that this card does not have
        pci = nvml.value("DeviceGetNvLinkRemotePciInfo", handle, link)
        raw = getattr(pci, "busId", b"")
        neighbour = short_bus_id(raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw))
        kind = nvml.value("DeviceGetNvLinkRemoteDeviceType", handle, link)
        if kind == _DEVICE_TYPE_SWITCH or (kind is None and neighbour not in bus_ids):
            switched += 1
        else:
            direct[neighbour] += 1
    return direct, switched


def _speed(nvml: Nvml, handle: Any) -> float | None:
    """Return the rate of one link in bytes per second, one direction."""
    values = nvml.value("DeviceGetFieldValues", handle, [_FIELD_LINK_SPEED])
    if values is None or values[0].nvmlReturn != 0 or values[0].value.uiVal == 0:
        return None
    return float(values[0].value.uiVal) * 1e6


def _peer_access(nvml: Nvml, first: Any, second: Any) -> bool | None:
    statuses = [nvml.value("DeviceGetP2PStatus", first, second, what) for what in (_READ, _WRITE)]
    return None if any(status is None for status in statuses) else all(status == _P2P_OK for status in statuses)


def _rate(links: int, speeds: tuple[float | None, float | None]) -> Reading:
    if speeds[0] is None or speeds[1] is None:
        return unknown("not measured")
    rate = links * min(speeds[0], speeds[1])
    return reported(rate, f"the driver states {links} NVLinks of {min(speeds[0], speeds[1]) / 1e9:g} GB/s")


def read_links(nvml: Nvml, devices: list[tuple[int, Found]]) -> tuple[DeviceLink, ...]:
    """Return one link per pair of whole, living devices; ``devices`` come with their index in the profile."""
    whole = [(i, d) for i, d in devices if d.handle is not None and d.fields["healthy"] is not False]
    whole = [(i, d) for i, d in whole if not d.fields.get("mig_enabled")]
    if len(whole) < 2:
        return ()
    bus_ids = {d.fields["pci_bus_id"] for _, d in whole}
    nvlinks = {i: _nvlinks(nvml, d.handle, bus_ids) for i, d in whole}
    speeds = {i: _speed(nvml, d.handle) if sum(nvlinks[i][0].values()) + nvlinks[i][1] else None for i, d in whole}
    links = []
    for position, (a, first) in enumerate(whole):
        for b, second in whole[position + 1 :]:
            direct = nvlinks[a][0][second.fields["pci_bus_id"]]
            switched = min(nvlinks[a][1], nvlinks[b][1])
            level = nvml.value("DeviceGetTopologyCommonAncestor", first.handle, second.handle)
            kind: LinkKind = "unknown" if level is None else _ANCESTORS.get(int(level), "unknown")
            count: int | None = None
            if direct:
                kind, count = "nvlink", direct
            elif switched:
                kind, count = "nvswitch", switched
            links.append(
                DeviceLink(
                    device_a=a,
                    device_b=b,
                    kind=kind,
                    num_links=count,
                    peer_access=_peer_access(nvml, first.handle, second.handle),
                    bandwidth_bytes_per_second=_rate(count, (speeds[a], speeds[b]))
                    if count
                    else unknown("not measured"),
                )
            )
    return tuple(links)
