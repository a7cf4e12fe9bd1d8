"""What the launch script reads off the profile: which devices a node uses, and where the first node is reached."""

from __future__ import annotations

import ipaddress
import re
from itertools import combinations

from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile

FAST_LINKS = ("nvlink", "nvswitch")
_IDENTIFIER = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{1,80}")
MOST_TRIED = 2000
"""Subsets of a node's devices that are compared; beyond them the first ones are taken."""


def master_address(plan: Plan, profile: ClusterProfile) -> str:
    """Return an address of the plan's first node that others reach; empty where none is known.

    A name is no substitute: many systems lead their own name to 127.0.1.1 (pytorch/gloo issue 223).
    """
    names = plan.groups[0].hostnames
    node = next((n for n in profile.nodes if names and n.hostname == names[0]), None)
    if node is None:
        return ""
    wanted = {v for k, v in plan.environment.items() if k in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    nics = [n for n in node.nics if n.up and n.kind not in ("loopback", "virtual")]
    nics.sort(key=lambda n: (n.name not in wanted, -(n.rate_bytes_per_second.value or 0.0), n.name))
    found = [a for n in nics for a in n.addresses if _reachable(a)]
    return next(iter(sorted(found, key=lambda a: ":" in a)), "")


def _reachable(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast)


def visible_devices(plan: Plan, profile: ClusterProfile) -> tuple[tuple[str, str], ...]:
    """Return (host name, CUDA_VISIBLE_DEVICES) of the nodes that do not use all their devices.

    A lost device is not named; of more devices than the plan uses, those that NVLink joins are. Devices are named by
    UUID, since the driver's numbers are not CUDA's.
    """
    if plan.device_kind != "cuda":
        return ()
    found: list[tuple[str, str]] = []
    for group in plan.groups:
        for name in group.hostnames:
            node = next((n for n in profile.nodes if n.hostname == name), None)
            chosen = () if node is None else _chosen(node, group.devices_per_node)
            if chosen:
                found.append((name, ",".join(chosen)))
    return tuple(found)


def _chosen(node: NodeProfile, count: int) -> tuple[str, ...]:
    """Return the UUIDs of the devices to use; empty where all are used, or one of them has no UUID."""
    usable = [d for d in node.devices if d.healthy is not False]
    if (len(usable) == len(node.devices) and count == len(usable)) or count > len(usable):
        return ()
    picked = usable if count == len(usable) else best_joined(node, usable, count)
    names = tuple(d.uuid for d in picked)
    return names if all(_IDENTIFIER.fullmatch(n) for n in names) else ()


def best_joined(node: NodeProfile, usable: list[DeviceProfile], count: int) -> list[DeviceProfile]:
    """Return ``count`` devices with the most fast links among them; the first ones where links do not decide."""
    fast = {frozenset((link.device_a, link.device_b)) for link in node.links if link.kind in FAST_LINKS}
    best, most = usable[:count], -1
    for tried, subset in enumerate(combinations(usable, count)):
        if tried == MOST_TRIED or not fast:
            break
        joined = sum(frozenset((a.index, b.index)) in fast for a, b in combinations(subset, 2))
        if joined > most:
            best, most = list(subset), joined
    return best
