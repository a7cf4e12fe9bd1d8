"""What changed on this machine since its profile was measured: devices, their memory and health, the host's share."""

from __future__ import annotations

from collections import Counter

from stratadvisor.schema.base import Reading
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile

DEVICE_MEMORY_TOLERANCE = 0.05
"""Drivers and reserved pages move a device's total by a little."""
HOST_MEMORY_TOLERANCE = 0.10


def node_of(profile: ClusterProfile, now: NodeProfile) -> NodeProfile | None:
    """Return the node of a measured profile that this machine is: same host name, or a device with the same UUID."""
    if not profile.captured_at:
        return None  # written by hand: nobody has looked at this machine
    uuids = {device.uuid for device in now.devices if device.uuid}
    for node in profile.nodes:
        if node.hostname == now.hostname or any(device.uuid in uuids for device in node.devices):
            return node
    return None


def changes(profile: ClusterProfile, now: NodeProfile) -> tuple[str, ...]:
    """Return what differs between a node as profiled and as it is now, each in words; empty for another machine."""
    then = node_of(profile, now)
    if then is None:
        return ()
    before, after = _accelerators(then), _accelerators(now)
    found = [*_counts(before, after), *_each(before, after)]
    if not before:
        found += _amount("usable cores", then.cpu.usable_cores, now.cpu.usable_cores, 0.0, 1.0, "")
    memory_then, memory_now = _host_memory(then), _host_memory(now)
    return (*found, *_amount("host memory", memory_then, memory_now, HOST_MEMORY_TOLERANCE, 2.0**30, " GiB"))


def _accelerators(node: NodeProfile) -> tuple[DeviceProfile, ...]:
    return tuple(device for device in node.devices if device.kind != "cpu")


def _counts(before: tuple[DeviceProfile, ...], after: tuple[DeviceProfile, ...]) -> list[str]:
    then, now = Counter(d.name for d in before), Counter(d.name for d in after)
    return [f"{name}: {then[name]} then, {now[name]} now" for name in {**then, **now} if then[name] != now[name]]


def _each(before: tuple[DeviceProfile, ...], after: tuple[DeviceProfile, ...]) -> list[str]:
    """Compare devices with the same index and name; a different set of devices has been told already."""
    known = {(device.index, device.name): device for device in before}
    found = []
    for device in after:
        then = known.get((device.index, device.name))
        if then is None:
            continue
        what = f"device {device.index} ({device.name})"
        found += _amount(
            f"memory of {what}",
            then.memory_total_bytes,
            device.memory_total_bytes,
            DEVICE_MEMORY_TOLERANCE,
            2.0**30,
            " GiB",
        )
        if device.healthy is False and then.healthy is not False:
            found.append(f"{what} is not usable now: {device.health_reason or 'no reason given'}")
        if None not in (then.mig_enabled, device.mig_enabled) and then.mig_enabled != device.mig_enabled:
            found.append(f"{what}: MIG is {'on' if device.mig_enabled else 'off'} now")
    return found


def _host_memory(node: NodeProfile) -> Reading:
    """Return what a process may use: the control group's limit where that is less than the machine's memory."""
    total, limit = node.host_memory.total_bytes, node.host_memory.limit_bytes
    if limit.value is not None and (total.value is None or limit.value < total.value):
        return limit
    return total


def _amount(what: str, then: Reading, now: Reading, tolerance: float, unit: float, name: str) -> list[str]:
    """Return the difference of two known amounts; an unknown one is no difference."""
    if then.value is None or now.value is None or abs(now.value - then.value) <= tolerance * then.value:
        return []
    return [f"{what}: {then.value / unit:.4g}{name} then, {now.value / unit:.4g}{name} now"]
