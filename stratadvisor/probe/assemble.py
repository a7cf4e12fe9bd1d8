"""Turn what the sub-probes brought back into a node profile; what stayed unknown keeps the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratadvisor.probe.fit import bus_factor, fit_alpha_beta
from stratadvisor.probe.found import (
    FeedRates,
    LinkRates,
    MatmulRates,
    MemoryRate,
    PairRate,
    Steadiness,
    StorageRates,
    SweepTimes,
)
from stratadvisor.schema.base import Reading, measured, reported, unknown
from stratadvisor.schema.profile import (
    CollectiveSweep,
    DataFeedProfile,
    DeviceLink,
    DeviceProfile,
    NicProfile,
    SpeedLevel,
    SpeedOverTime,
    StorageProfile,
    SweepPoint,
    Verdict,
)

_FABRICS = ("infiniband", "roce", "efa")


_WHOLE_SHARE = 0.9
"""Of a processor: from here on nothing takes it away, as far as timings tell."""
_EDGE_FACTOR = 2
"""A product of another size says little of one more than this factor away."""


def over_time(steady: Steadiness | None, assumed_share: float, by_edge: Mapping[int, float]) -> tuple[float, str]:
    """Return what brief timings are to be multiplied by to become means over time, and why in words.

    Args:
        steady: the device watched for seconds; None: it was not, and timings stay as they are.
        assumed_share: of a processor, which the timings take to be had; it was seen for half a second only.
        by_edge: products timed at that time, FLOP per second by edge.

    """
    if steady is None:
        return 1.0, ""
    share = steady.processor_share
    if share < _WHOLE_SHARE or assumed_share < 1.0:
        return share / assumed_share, f"the processor is had for {share:.0%} of {steady.watched_seconds:.1f} s"
    if steady.levels is None:
        return 1.0, ""
    near = [edge for edge in by_edge if steady.edge / _EDGE_FACTOR <= edge <= steady.edge * _EDGE_FACTOR]
    if not near:
        return 1.0, ""
    timed = by_edge[min(near, key=lambda edge: abs(edge - steady.edge))]
    return steady.flops_per_second / timed, f"mean over the changing speed of {steady.watched_seconds:.1f} s"


def with_compute(
    device: DeviceProfile, rates: dict[str, MatmulRates] | None, how: str, reason: str, steady: Steadiness | None = None
) -> DeviceProfile:
    """Return the device with its matrix rates, as means over the time that it was watched."""
    levels = {} if steady is None or steady.levels is None else {"speed_over_time": speed_over_time(steady)}
    if rates is None:
        return device.model_copy(update={"matmul_flops_per_second": {"fp32": unknown(reason)}, **levels})
    single = rates["fp32"].by_edge if "fp32" in rates else {}
    best: dict[str, Reading] = {}
    by_size: dict[str, dict[int, float]] = {}
    for precision, found in rates.items():
        if found.by_edge:
            factor, why = over_time(steady, found.processor_share, single)
            by_size[precision] = {edge: rate * factor for edge, rate in found.by_edge.items()}
            large = [edge for edge in found.by_edge if 2 * edge >= max(found.by_edge)]  # not what fits into a cache
            edge = max(large, key=lambda n: found.by_edge[n])
            text = f"fastest product of {edge}x{edge} matrices, {how}" + (f"; {why}" if why else "")
            best[precision] = measured(by_size[precision][edge], text)
        else:
            best[precision] = unknown(found.reason or "no product was timed")
    changes: dict[str, Any] = {"matmul_flops_per_second": best, "matmul_by_size": by_size, **levels}
    small = rates["fp32"] if "fp32" in rates else MatmulRates()
    if small.operation_seconds is not None:
        factor, why = over_time(steady, small.processor_share, single)
        text = "fastest chain of 200 products of 16x16 elements, forward and backward" + (f"; {why}" if why else "")
        changes["operation_seconds"] = measured(small.operation_seconds / factor, text)
    return device.model_copy(update=changes)


def speed_over_time(steady: Steadiness) -> SpeedOverTime | None:
    """Return the speeds between which a device changes."""
    found = steady.levels
    if found is None:
        return None
    return SpeedOverTime(
        levels=tuple(SpeedLevel(time_share=share, relative_speed=speed) for share, speed in found.speeds),
        phase_seconds=found.phase_seconds,
        watched_seconds=steady.watched_seconds,
    )


def memory_reading(rate: MemoryRate | None, how: str, reason: str, steady: Steadiness | None = None) -> Reading:
    """Return a memory bandwidth, as the mean over the time that the device was watched."""
    if rate is None:
        return unknown(reason)
    factor, why = over_time(steady, rate.processor_share, {})
    text = f"best of {rate.num_samples} triads, arrays of {rate.array_bytes} B, {how}" + (f"; {why}" if why else "")
    return measured(rate.bytes_per_second * factor, text)


def with_host_link(device: DeviceProfile, rates: LinkRates | None, reason: str) -> DeviceProfile:
    """Return an accelerator with the rates of its host link."""
    if rates is None:
        nothing = unknown(reason)
        return device.model_copy(
            update={"host_to_device_bytes_per_second": nothing, "device_to_host_bytes_per_second": nothing}
        )
    how = f"fastest copy of {rates.buffer_bytes} B from or to pinned memory, one device and direction at a time"
    return device.model_copy(
        update={
            "host_to_device_bytes_per_second": measured(rates.host_to_device, how),
            "device_to_host_bytes_per_second": measured(rates.device_to_host, how),
        }
    )


def with_pairs(links: tuple[DeviceLink, ...], rates: list[PairRate], index_of: Mapping[int, int]) -> list[DeviceLink]:
    """Return the links with measured rates; ``index_of`` maps torch's index to DeviceProfile.index."""
    known = {frozenset((link.device_a, link.device_b)): link for link in links}
    for rate in rates:
        a, b = index_of[rate.device_a], index_of[rate.device_b]
        link = known.get(frozenset((a, b)), DeviceLink(device_a=a, device_b=b, kind="unknown"))
        reading = measured(rate.bytes_per_second, f"fastest of 3 copies from device {a} to device {b}")
        peer = link.peer_access if link.peer_access is not None else rate.peer_access
        known[frozenset((a, b))] = link.model_copy(update={"bandwidth_bytes_per_second": reading, "peer_access": peer})
    return list(known.values())


def pair_verdicts(rates: list[PairRate], index_of: Mapping[int, int], hostname: str) -> list[Verdict]:
    """Return a problem for every pair whose copy arrived damaged."""
    return [
        Verdict(
            level="problem",
            subject=f"{hostname} GPU {index_of[rate.device_a]} to GPU {index_of[rate.device_b]}",
            message="data copied directly between these devices arrives damaged",
            advice="set NCCL_P2P_DISABLE=1 and update the driver (known with RTX 4090 and driver 525)",
        )
        for rate in rates
        if not rate.intact
    ]


def torch_verdict(hostname: str, num_devices: int, reason: str) -> Verdict:
    """Return the problem of accelerators that torch cannot use."""
    return Verdict(
        level="problem",
        subject=f"{hostname} torch",
        message=f"torch uses none of the {num_devices} usable accelerator(s) that the driver lists: {reason}",
        advice="install a torch build for this driver (pytorch.org/get-started), then probe again",
    )


def sweep_profile(times: SweepTimes, how: str) -> CollectiveSweep:
    """Return the all-reduce sweep of one node with its fit."""
    factor = bus_factor(times.world_size)
    points = tuple(
        SweepPoint(
            message_bytes=size,
            seconds=seconds,
            algorithm_bandwidth_bytes_per_second=size / seconds,
            bus_bandwidth_bytes_per_second=size / seconds * factor,
        )
        for size, seconds in times.points
    )
    latency = bandwidth = unknown("fewer than two message sizes were timed")
    if len(points) >= 2:
        fit = fit_alpha_beta([(float(size), seconds) for size, seconds in times.points])
        text = f"fit over {fit.num_points} sizes, {how}; a point lies {fit.median_relative_error:.0%} off (median)"
        smallest = times.points[0]
        if fit.latency_seconds > 0:
            latency = measured(fit.latency_seconds, f"alpha of a {text}")
        else:
            latency = measured(smallest[1], f"time of {smallest[0]} B; the {text} leaves no constant part")
        if fit.bytes_per_second is None:
            bandwidth = unknown("time does not grow with message size here")
        else:
            bandwidth = measured(fit.bytes_per_second * factor, f"1/beta times 2(n-1)/n, {text}")
    return CollectiveSweep(
        operation="all_reduce",
        scope="intra_node",
        backend="nccl" if times.backend == "nccl" else "gloo",
        world_size=times.world_size,
        points=points,
        latency_seconds=latency,
        bus_bandwidth_bytes_per_second=bandwidth,
    )


def storage_profile(rates: StorageRates) -> StorageProfile:
    """Return one measured path."""

    def reading(value: float | None, detail: str) -> Reading:
        return unknown(detail) if value is None else measured(value, detail)

    return StorageProfile(
        path=rates.path,
        filesystem=rates.filesystem,
        free_bytes=reported(float(rates.free_bytes), "statvfs"),
        read_bytes_per_second=reading(rates.read_bytes_per_second, rates.read_detail),
        write_bytes_per_second=reading(rates.write_bytes_per_second, rates.write_detail),
    )


def data_feed_profile(rates: FeedRates | None, reason: str) -> DataFeedProfile:
    """Return the data loader's cost."""
    if rates is None:
        return DataFeedProfile(item_seconds=unknown(reason), item_cpu_seconds=unknown(reason))
    return DataFeedProfile(
        item_seconds=measured(rates.item_seconds, "mean wall time of an item in the training process"),
        item_cpu_seconds=measured(rates.item_cpu_seconds, "its processor time; the rest is waiting"),
        items_per_second_by_workers=rates.items_per_second_by_workers,
        item_bytes=rates.item_bytes,
        description=rates.description,
    )


def variation_reading(found: Mapping[int, Steadiness], reason: str) -> Reading:
    """Return the variation of the least steady device."""
    if not found:
        return unknown(reason)
    worst = max(found.values(), key=lambda s: s.variation)
    return measured(
        worst.variation,
        f"least steady of {len(found)} devices, {worst.num_pieces} pieces of {worst.piece_seconds:.3g} s, all devices"
        " at once",
    )


def network_reading(nics: tuple[NicProfile, ...]) -> Reading:
    """Return the reported line rate of what carries training traffic: all fabric ports, else the best Ethernet one."""
    up = [nic for nic in nics if nic.up is not False and nic.rate_bytes_per_second.value is not None]
    fabric = [nic for nic in up if nic.kind in _FABRICS]
    chosen = (
        fabric
        or sorted(
            (nic for nic in up if nic.kind == "ethernet"), key=lambda nic: nic.rate_bytes_per_second.value or 0.0
        )[-1:]
    )
    if not chosen:
        return unknown("no physical interface states a rate, and one node alone cannot measure it")
    names = ", ".join(nic.name for nic in chosen)
    return reported(
        sum(nic.rate_bytes_per_second.value or 0.0 for nic in chosen), f"line rate of {names} as sysfs states it"
    )
