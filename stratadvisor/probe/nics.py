"""Network interfaces and InfiniBand devices from sysfs. Rates are what the driver states, never a measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from stratadvisor.probe.files import link_name, list_dir, read_int, read_text
from stratadvisor.probe.outcome import UnsupportedHereError
from stratadvisor.schema.base import Reading, reported, unknown
from stratadvisor.schema.profile import NicKind, NicProfile

_ETHERNET, _INFINIBAND, _LOOPBACK = 1, 32, 772
"""ARPHRD_* of linux/if_arp.h, as in /sys/class/net/NAME/type."""


def system_addresses() -> dict[str, tuple[str, ...]]:
    """Return the IP addresses of every interface, IPv4 first; empty when psutil cannot tell."""
    try:
        import psutil

        found = psutil.net_if_addrs()
    except (ImportError, OSError):
        return {}
    result = {}
    for name, entries in found.items():
        usable = sorted((e for e in entries if e.family.name in ("AF_INET", "AF_INET6")), key=lambda e: e.family.value)
        result[name] = tuple(e.address.partition("%")[0] for e in usable)
    return result


def _is_virtual(folder: Path) -> bool:
    """Whether no hardware is behind it: bridges, veth pairs, tunnels (but a bond stands for its members)."""
    return not (folder / "device").exists()


def _rate(folder: Path) -> Reading:
    speed = read_int(folder / "speed")  # Mbit/s
    if speed is None or speed <= 0:
        return unknown("the driver states no speed")
    return reported(speed * 1e6 / 8, f"the driver states {speed} Mb/s")


def _port_rate(port: Path) -> Reading:
    """Return the rate of an InfiniBand port, written as ``200 Gb/sec (4X HDR)``."""
    text = read_text(port / "rate") or ""
    match = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec", text)
    if match is None or float(match.group(1)) == 0:
        return unknown("the port states no rate")
    return reported(float(match.group(1)) * 1e9 / 8, f"the port states {text}")


def _port_up(port: Path) -> bool | None:
    state = read_text(port / "state")  # "4: ACTIVE"
    return None if state is None else state.endswith("ACTIVE")


def _up(folder: Path) -> bool | None:
    state = read_text(folder / "operstate")
    if state in ("up", "down", "lowerlayerdown", "dormant", "notpresent"):
        return state == "up"
    carrier = read_int(folder / "carrier")  # drivers that keep no state ("unknown") often still know the carrier
    return None if carrier is None else carrier == 1


def _numa(device: Path) -> int | None:
    node = read_int(device / "numa_node")
    return node if node is not None and node >= 0 else None


def _interface(root: Path, folder: Path, addresses: tuple[str, ...]) -> NicProfile:
    device = folder / "device"
    hardware, bond = read_int(folder / "type"), (folder / "bonding").exists()
    rdma = next((p.name for p in list_dir(device / "infiniband")), "")
    rate = _rate(folder)
    kind: NicKind
    if hardware == _LOOPBACK or folder.name == "lo":
        kind, rate = "loopback", unknown("loopback has no line rate")
    elif hardware == _INFINIBAND:
        kind = "infiniband"
        port = next(iter(list_dir(device / "infiniband" / rdma / "ports")), None) if rdma else None
        if not rate.known and port is not None:
            rate = _port_rate(port)
    elif _is_virtual(folder) and not bond:
        kind = "virtual"
        rate = unknown("a virtual interface: the speed that it states limits nothing")
    elif hardware == _ETHERNET:
        kind = "roce" if rdma else "ethernet"
    else:
        kind = "unknown"
    return NicProfile(
        name=folder.name,
        kind=kind,
        rate_bytes_per_second=rate,
        up=_up(folder),
        addresses=addresses,
        driver=link_name(device / "driver"),
        numa_node=_numa(device),
        rdma_device=rdma,
        rdma_usable=bool(list_dir(root / "dev/infiniband")) if rdma else None,
    )


def _bare_rdma(root: Path, taken: set[str]) -> list[NicProfile]:
    """Return a NIC for each RDMA device that no interface stands for (EFA, or InfiniBand without IPoIB)."""
    found = []
    for folder in list_dir(root / "sys/class/infiniband"):
        if folder.name in taken:
            continue
        driver = link_name(folder / "device/driver")
        ports = list_dir(folder / "ports")
        port = ports[0] if ports else folder / "ports/1"
        ethernet = read_text(port / "link_layer") == "Ethernet"
        kind: NicKind = "efa" if driver == "efa" else "roce" if ethernet else "infiniband"
        found.append(
            NicProfile(
                name=folder.name,
                kind=kind,
                rate_bytes_per_second=_port_rate(port),
                up=_port_up(port),
                driver=driver,
                numa_node=_numa(folder / "device"),
                rdma_device=folder.name,
                rdma_usable=bool(list_dir(root / "dev/infiniband")),
            )
        )
    return found


def collect(root: Path = Path("/"), addresses: Mapping[str, tuple[str, ...]] | None = None) -> tuple[NicProfile, ...]:
    """Return every network interface; ``addresses`` are psutil's when not given and ``root`` is this machine.

    Raises:
        UnsupportedHereError: there are interfaces, and nothing that describes them (a system without /sys).

    """
    if addresses is None:
        addresses = system_addresses() if root == Path("/") else {}
    if addresses and not (root / "sys/class/net").is_dir():
        raise UnsupportedHereError("/sys/class/net is not there: what the interfaces are cannot be read")
    folders = [p for p in list_dir(root / "sys/class/net") if p.is_dir()]  # bonding_masters is a file
    nics = [_interface(root, folder, addresses.get(folder.name, ())) for folder in folders]
    return (*nics, *_bare_rdma(root, {nic.rdma_device for nic in nics}))
