"""Verdicts on what was measured: each number against what the device or link should give.

The floors are shares of a published or reported rate. ``warn`` is below what healthy machines show, ``problem`` far
below. They are ours, set under the usual results: large cuBLAS products reach 65 to 90 % of the dense peak, a triad 80
to 92 % of the memory's rate, pinned copies 80 to 90 % of what PCIe allows, NCCL rings 75 to 85 % of NVLink.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from stratadvisor.catalog import devices as device_catalog
from stratadvisor.schema.base import Reading
from stratadvisor.schema.profile import (
    ClusterProfile,
    CollectiveSweep,
    DeviceProfile,
    NodeProfile,
    Verdict,
)
from stratadvisor.units import format_flops, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Floor:
    """Shares of the expected rate."""

    warn: float
    problem: float


MATMUL = Floor(warn=0.55, problem=0.35)
MEMORY = Floor(warn=0.70, problem=0.50)
HOST_LINK = Floor(warn=0.60, problem=0.35)
NVLINK_RING = Floor(warn=0.55, problem=0.30)
PCIE_RING = Floor(warn=0.25, problem=0.12)
NETWORK_RING = Floor(warn=0.50, problem=0.25)
ABOVE_PEAK = 1.10
"""A rate this far above the published peak means that the device is not the one it was taken for."""
SIBLING_SHARE = 0.85
"""A device below this share of its node's median is slow; equal cards repeat within 2 to 5 %."""
UNSTEADY = Floor(warn=0.10, problem=0.25)
"""Coefficients of variation; here higher is worse."""
SLOW_STORAGE_BYTES_PER_SECOND = 100e6
"""What one magnetic disk reads in sequence."""
SLOW_LATENCY_SECONDS = 5e-3
"""An empty all-reduce inside a node takes 10 to 50 us with NCCL and well below 1 ms with gloo."""
_MATRIX_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")


def judge(profile: ClusterProfile) -> tuple[Verdict, ...]:
    """Return what is not as it should be, and, where a catalog entry allows, what is normal."""
    verdicts: list[Verdict] = []
    for node in profile.nodes:
        for device in node.devices:
            verdicts += _compute(node, device)
            verdicts += _memory(node, device)
            verdicts += _host_link(node, device)
        verdicts += _siblings(node)
        verdicts += _steadiness(node)
        verdicts += _storage(node)
    for sweep in profile.collectives:
        verdicts += _sweep(profile, sweep)
    return tuple(verdicts)


def judge_between(profile: ClusterProfile) -> tuple[Verdict, ...]:
    """Return what the collectives between nodes say, and nothing of what happens inside them."""
    between = (sweep for sweep in profile.collectives if sweep.scope == "inter_node")
    return tuple(verdict for sweep in between for verdict in _sweep(profile, sweep))


def _level(share: float, floor: Floor) -> str | None:
    if share < floor.problem:
        return "problem"
    return "warning" if share < floor.warn else None


def _verdict(level: str, subject: str, message: str, advice: str = "") -> Verdict:
    return Verdict.model_validate({"level": level, "subject": subject, "message": message, "advice": advice})


def _spec(device: DeviceProfile) -> device_catalog.DeviceSpec | None:
    return device_catalog.lookup(device.catalog_key or device.name)


def _subject(node: NodeProfile, device: DeviceProfile) -> str:
    return f"{node.hostname} {'CPU rank' if device.kind == 'cpu' else 'GPU'} {device.index}"


def _timed(reading: Reading | None) -> float | None:
    return reading.value if reading is not None and reading.origin == "measured" else None


def _compute(node: NodeProfile, device: DeviceProfile) -> Iterator[Verdict]:
    spec = _spec(device)
    if spec is None:
        return
    shares = {
        precision: (rate, rate / peak, peak)
        for precision, peak in spec.peak_flops_per_second.items()
        if precision in _MATRIX_PRECISIONS
        and (rate := _timed(device.matmul_flops_per_second.get(precision))) is not None
    }
    if not shares:
        return
    precision = next(p for p in _MATRIX_PRECISIONS if p in shares)
    rate, share, peak = shares[precision]
    text = (
        f"{precision} products run at {format_flops(rate)}, "
        f"{share:.0%} of the {spec.key}'s published {format_flops(peak)}"
    )
    level = _level(share, MATMUL)
    if share > ABOVE_PEAK:
        advice = "the device is not the one its name says: name the right type in the profile"
        yield _verdict("warning", _subject(node, device), text, advice)
    elif level is None:
        yield _verdict("info", _subject(node, device), f"{text}: normal")
    else:
        yield _verdict(level, _subject(node, device), text, _slow_device_advice(device))


def _slow_device_advice(device: DeviceProfile) -> str:
    limit, default = device.power_limit_watts.value, device.power_default_watts.value
    if device.memory_users:
        return "other processes use the device: end them and probe again"
    if limit is not None and default is not None and limit < 0.95 * default:
        return f"its power limit is {limit:.0f} W of {default:.0f} W: raise it (nvidia-smi -pl)"
    if device.throttle_reasons:
        return f"the driver says it is slowed by {', '.join(device.throttle_reasons)}: look at cooling and power"
    return "look for another user of the device, its power limit, clocks and cooling, and probe again"


def _memory(node: NodeProfile, device: DeviceProfile) -> Iterator[Verdict]:
    spec, rate = _spec(device), _timed(device.memory_bandwidth_bytes_per_second)
    if spec is None or rate is None:
        return
    share = rate / spec.memory_bandwidth_bytes_per_second
    level = _level(share, MEMORY)
    if level is not None:
        yield _verdict(
            level,
            _subject(node, device),
            f"its memory moves {format_rate(rate)}, {share:.0%} of the published "
            f"{format_rate(spec.memory_bandwidth_bytes_per_second)}",
            "look for another user of the device, lowered memory clocks, or retired rows (ECC), and probe again",
        )


def expected_host_link(device: DeviceProfile) -> tuple[float, str] | None:
    """Return what pinned copies should reach and why: the slot's generation and width, else the catalog's figure.

    The current generation is not used: an idle card shows generation 1.
    """
    spec = _spec(device)
    generation, width = device.pcie_generation_max, device.pcie_width_current or device.pcie_width_max
    per_x16 = device_catalog.PCIE_X16_BYTES_PER_SECOND.get(generation or 0)
    if spec is not None and spec.host_link_bytes_per_second > max(device_catalog.PCIE_X16_BYTES_PER_SECOND.values()):
        return spec.host_link_bytes_per_second, f"the {spec.key}'s own link"
    if per_x16 is not None and width is not None:
        return per_x16 * width / 16, f"PCIe generation {generation} with {width} lanes"
    return (spec.host_link_bytes_per_second, f"the {spec.key}'s slot") if spec is not None else None


def _host_link(node: NodeProfile, device: DeviceProfile) -> Iterator[Verdict]:
    expected = expected_host_link(device)
    if expected is None:
        return
    for name, reading in (
        ("from host to device", device.host_to_device_bytes_per_second),
        ("from device to host", device.device_to_host_bytes_per_second),
    ):
        rate = _timed(reading)
        level = None if rate is None else _level(rate / expected[0], HOST_LINK)
        if rate is not None and level is not None:
            yield _verdict(
                level,
                _subject(node, device),
                f"pinned copies {name} run at {format_rate(rate)}; "
                f"{expected[1]} gives about {format_rate(expected[0])}",
                "check the slot's width, the riser, the NUMA node the process runs on, and IOMMU or ACS settings",
            )


def _siblings(node: NodeProfile) -> Iterator[Verdict]:
    """Name the devices that are slower than the others of the same name."""
    for precision in _MATRIX_PRECISIONS:
        groups: dict[str, list[tuple[DeviceProfile, float]]] = {}
        for device in node.devices:
            rate = _timed(device.matmul_flops_per_second.get(precision))
            if rate is not None:
                groups.setdefault(device.name, []).append((device, rate))
        found = False
        for members in groups.values():
            usual = statistics.median(rate for _, rate in members)
            for device, rate in members if len(members) > 1 else []:
                if rate < SIBLING_SHARE * usual:
                    found = True
                    yield _verdict(
                        "warning",
                        _subject(node, device),
                        f"{precision} products run at {rate / usual:.0%} of the median of its equals on this node",
                        _slow_device_advice(device),
                    )
        if found or groups:
            return


def _steadiness(node: NodeProfile) -> Iterator[Verdict]:
    changing = [d for d in node.devices if d.speed_over_time is not None]
    for device in changing:
        over = device.speed_over_time
        assert over is not None
        yield _verdict(
            "problem" if (_timed(node.speed_variation) or 0.0) > UNSTEADY.problem else "warning",
            node.hostname if len(node.devices) == 1 else _subject(node, device),
            over.in_words,
            "something else uses it at these times, or it is throttled: end that and probe again; plans take it to go"
            " on, and every rank that trains in step waits for it",
        )
    value = _timed(node.speed_variation)
    if changing or value is None or value <= UNSTEADY.warn:
        return
    yield _verdict(
        "problem" if value > UNSTEADY.problem else "warning",
        node.hostname,
        f"equal pieces of time see work that varies by {value:.0%} (standard deviation over mean)",
        "something else uses this machine, or it is throttled; step times will vary alike: probe again when quiet",
    )


def _storage(node: NodeProfile) -> Iterator[Verdict]:
    for storage in node.storage:
        rate = _timed(storage.read_bytes_per_second)
        if rate is not None and rate < SLOW_STORAGE_BYTES_PER_SECOND:
            yield _verdict(
                "warning",
                f"{node.hostname} {storage.path}",
                f"it reads {format_rate(rate)}, slower than one magnetic disk",
                "keep the data set on local storage, or name another path (--storage-path)",
            )


def _sweep(profile: ClusterProfile, sweep: CollectiveSweep) -> Iterator[Verdict]:
    where = "inside a node" if sweep.scope == "intra_node" else "between nodes"
    latency, rate = _timed(sweep.latency_seconds), _timed(sweep.bus_bandwidth_bytes_per_second)
    if sweep.scope == "intra_node" and latency is not None and latency > SLOW_LATENCY_SECONDS:
        yield _verdict(
            "warning",
            f"{sweep.operation} {where}",
            f"an empty one takes {format_seconds(latency)}",
            "the ranks wait for a processor: give the job more cores, or look for other users of the machine",
        )
    expected = _expected_ring(profile, sweep)
    if rate is None or expected is None:
        return
    target, floor, why, advice = expected
    level = _level(rate / target, floor)
    if level is not None:
        yield _verdict(
            level,
            f"{sweep.operation} {where}",
            f"bus bandwidth is {format_rate(rate)}, {rate / target:.0%} of {why}",
            advice,
        )


def _expected_ring(profile: ClusterProfile, sweep: CollectiveSweep) -> tuple[float, Floor, str, str] | None:
    """Return (rate, floor, what it is, advice) that a ring over the sweep's ranks is held against."""
    if sweep.scope == "inter_node":
        rates = [node.network_bytes_per_second.value for node in profile.nodes]
        known = [rate for rate in rates if rate is not None]
        if not known or len(known) < len(rates):
            return None
        text = f"the slowest node's line rate, {format_rate(min(known))}"
        advice = "check which interface is used (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME), RDMA, and the switch ports"
        return min(known), NETWORK_RING, text, advice
    node = next((n for n in profile.nodes if len(n.devices) >= sweep.world_size), None)
    if node is None or sweep.backend != "nccl":
        return None
    pairs = sweep.world_size * (sweep.world_size - 1) // 2
    all_nvlink = sum(link.kind in ("nvlink", "nvswitch") for link in node.links) >= pairs
    specs = [_spec(device) for device in node.devices]
    rates = [spec.link_bytes_per_second for spec in specs if spec is not None]
    if all_nvlink and len(rates) == len(specs) and all(rate is not None for rate in rates):
        slowest = min(rate for rate in rates if rate is not None)
        text = f"NVLink's {format_rate(slowest)} per device"
        return slowest, NVLINK_RING, text, "look at nvidia-smi nvlink -s, fabric manager and NCCL_DEBUG=INFO"
    hosts = [link for device in node.devices if (link := expected_host_link(device)) is not None]
    if len(hosts) < len(node.devices) or not hosts:
        return None
    text = f"one PCIe link's {format_rate(min(hosts)[0])}"
    return min(hosts)[0], PCIE_RING, text, "look at nvidia-smi topo -m and NCCL_DEBUG=INFO: is peer access in use?"
