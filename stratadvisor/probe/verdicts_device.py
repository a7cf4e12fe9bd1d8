"""Findings about the accelerators of one node."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.catalog.cuda_builds import lacking_kernels
from stratadvisor.schema.profile import DeviceProfile, NodeProfile, Verdict
from stratadvisor.units import GIB, format_bytes, format_rate

_HARD_THROTTLE = {
    "hw_slowdown": "the hardware slows it down (heat or power)",
    "sw_thermal_slowdown": "the driver slows it down because of heat",
    "hw_thermal_slowdown": "the hardware slows it down because of heat",
    "hw_power_brake_slowdown": "the power supply asks it to slow down",
}
_USED_SHARE, _USED_BYTES = 0.05, 1 * GIB
"""Held memory that matters: this share of the card, or this much. The driver itself holds well under a GiB."""
_POWER_SHARE = 0.95
_LANE_BYTES_PER_SECOND = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""PCI Express base specification: one lane, one direction, after line coding."""
_EXPECTED_COPY_SHARE = 0.4
"""Pinned copies reach about 80 % of the line; half of that means the link did not come up to its generation."""
_P2P_FIXED_DRIVER = (550, 40, 7)
"""Drivers before this advertise peer access between RTX 4090 cards that does not work."""


def _verdict(level: str, node: NodeProfile, device: DeviceProfile | None, message: str, advice: str = "") -> Verdict:
    subject = f"{node.hostname} GPU {device.index}" if device else f"{node.hostname} GPUs"
    return Verdict.model_validate({"level": level, "subject": subject, "message": message, "advice": advice})


def _gpus(node: NodeProfile, *, living: bool = True) -> list[DeviceProfile]:
    return [d for d in node.devices if d.kind != "cpu" and not (living and d.healthy is False)]


def health(node: NodeProfile) -> Iterator[Verdict]:
    """Yield devices that are lost, unusable, or remember errors; one finding for all that share a reason."""
    reasons: dict[str, list[DeviceProfile]] = {}
    for device in _gpus(node, living=False):
        if device.healthy is False:
            reasons.setdefault(device.health_reason or "no reason is known", []).append(device)
        elif device.health_reason:
            text = f"{device.name}: {device.health_reason}"
            yield _verdict("warning", node, device, text, "nvidia-smi -q and the kernel log have more")
    for reason, devices in reasons.items():
        names = ", ".join(f"{d.name}{f' at {d.pci_bus_id}' if d.pci_bus_id else ''}" for d in devices)
        text = f"{names} cannot be used: {reason}"
        advice = "left out of every plan until that is mended"
        yield _verdict("problem", node, devices[0] if len(devices) == 1 else None, text, advice)


def mixture(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding when the GPUs of the node are not alike."""
    gpus = _gpus(node)
    sizes = {round(d.memory_total_bytes.value / GIB) for d in gpus if d.memory_total_bytes.value}
    names = sorted({d.name for d in gpus})
    if len(names) > 1 or len(sizes) > 1:
        sizes_text = " and ".join(f"{size} GiB" for size in sorted(sizes))
        text = f"they are not alike ({', '.join(names)}; {sizes_text}): equal shares run at the pace of the weakest"
        advice = "set CUDA_DEVICE_ORDER=PCI_BUS_ID so that every program numbers them alike"
        yield _verdict("warning", node, None, text, advice)


def memory_in_use(node: NodeProfile) -> Iterator[Verdict]:
    """Yield devices whose memory others hold."""
    for device in _gpus(node):
        total, free = device.memory_total_bytes.value, device.memory_free_bytes.value
        if total is None or free is None or device.unified_memory:
            continue
        used = total - free
        if used > _USED_BYTES or used > _USED_SHARE * total:
            users = ", ".join(f"{user.pid} {user.name}".strip() for user in device.memory_users[:6])
            holders = f"held by {users}" if users else "the holders are not visible from here"
            text = f"{format_bytes(used)} of {format_bytes(total)} is in use: {holders}"
            yield _verdict(
                "warning", node, device, text, "plans use what is free now; end those programs to have it all"
            )


def pcie(node: NodeProfile) -> Iterator[Verdict]:
    """Yield links that are below what card and slot can do; an idle card shows generation 1, which is normal."""
    for device in _gpus(node):
        now, most = device.pcie_generation_current, device.pcie_generation_max
        width, widest = device.pcie_width_current, device.pcie_width_max
        if width is not None and widest is not None and width < widest:
            text = f"its PCIe link has {width} of {widest} lanes"
            yield _verdict("warning", node, device, text, "reseat the card; check riser, cable and slot")
        copies, lanes = device.host_to_device_bytes_per_second.value, widest or width
        line = _LANE_BYTES_PER_SECOND[most] * lanes if most in _LANE_BYTES_PER_SECOND and lanes else None
        if copies is not None and line is not None and copies < _EXPECTED_COPY_SHARE * line:
            text = f"copies from the host reach {format_rate(copies)} on a link of {format_rate(line)}"
            advice = "check the slot, its generation in the firmware, and other load on the host"
            yield _verdict("warning", node, device, text, advice)
        elif now is not None and most is not None and now < most:
            if "gpu_idle" in device.throttle_reasons or copies is not None or not device.throttle_reasons:
                text = f"PCIe generation {now} now, {most} under load: normal for an idle card"
                yield _verdict("info", node, device, text)
            else:
                text = f"PCIe generation {now} while it is busy, though card and slot can do {most}"
                yield _verdict(
                    "warning", node, device, text, "check the slot, riser and its generation in the firmware"
                )


def throttling(node: NodeProfile) -> Iterator[Verdict]:
    """Yield devices that are slowed down now."""
    for device in _gpus(node):
        hard = [reason for reason in device.throttle_reasons if reason in _HARD_THROTTLE]
        if hard:
            heat = device.temperature_celsius.value
            text = "; ".join(_HARD_THROTTLE[reason] for reason in hard) + (f" ({heat:g} C)" if heat else "")
            yield _verdict(
                "warning", node, device, text, "check cooling and power: the slowest GPU sets everyone's pace"
            )
        elif "sw_power_cap" in device.throttle_reasons:
            yield _verdict("info", node, device, "its clocks are held at the power limit: normal under full load")


def power(node: NodeProfile) -> Iterator[Verdict]:
    """Yield devices whose power limit was lowered."""
    for device in _gpus(node):
        limit, default = device.power_limit_watts.value, device.power_default_watts.value
        if limit is not None and default and limit < _POWER_SHARE * default:
            text = f"its power limit is {limit:g} W, {limit / default:.0%} of the default {default:g} W"
            yield _verdict(
                "warning", node, device, text, f"nvidia-smi -i {device.uuid} -pl {default:g}, unless on purpose"
            )


def ecc(node: NodeProfile) -> Iterator[Verdict]:
    """Yield devices that can correct memory errors but do not."""
    off = [device for device in _gpus(node) if device.ecc_enabled is False]
    if off:
        which = "GPU " + ", ".join(str(device.index) for device in off)
        text = f"ECC is off on {which}: a flipped bit goes unnoticed into the weights"
        yield _verdict("info", node, None, text, "nvidia-smi -e 1 and a reset, for runs of days")


def kind_of_device(node: NodeProfile) -> Iterator[Verdict]:
    """Yield what a slice, a virtual or an unknown device means for planning."""
    for device in _gpus(node):
        if device.mig_profile:
            text = f"a MIG slice ({device.mig_profile}) with its own memory: slices cannot train together"
            yield _verdict("info", node, device, text)
        elif device.virtual:
            yield _verdict("info", node, device, "a virtual GPU: its speed depends on who shares the card")
        elif device.unified_memory:
            yield _verdict("info", node, device, "it shares the host's memory: what the host takes, it lacks")
        elif device.catalog_key is None:
            text = f"{device.name} is not in the catalogue: only measured rates are known of it"
            yield _verdict("warning", node, device, text, "measure it (probe), or add it to a catalogue of your own")


def torch_build(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding for each kind of card that the installed torch has no kernels for: it is found, then fails."""
    build = node.software.versions.get("cuda", "")
    lacking = {d.name: lacking_kernels(d.compute_capability, build) for d in _gpus(node) if d.kind == "cuda"}
    for name, reason in lacking.items():
        if reason:
            text = f"{name}: {reason}; torch lists the device, and the first kernel fails"
            yield _verdict("problem", node, None, text, "install torch from the index of a matching CUDA release")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def peer_to_peer_driver(node: NodeProfile) -> Iterator[Verdict]:
    """Yield a finding for RTX 4090 cards under a driver whose peer access is broken (nccl-tests issue 117)."""
    driver = _version(node.software.versions.get("driver", ""))
    cards = [device for device in _gpus(node) if "RTX 4090" in device.name]
    if len(cards) > 1 and driver and driver < _P2P_FIXED_DRIVER:
        text = "this driver advertises peer access between RTX 4090 cards that does not work: hangs or zeros"
        yield _verdict(
            "problem", node, None, text, "update the driver to 550.40.07 or later, or set NCCL_P2P_DISABLE=1"
        )
