"""Turn what the sub-probes brought back into a node profile; what stayed unknown keeps the reason."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

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
    StorageProfile,
    SweepPoint,
    Verdict,
)

_FABRICS = ("infiniband", "roce", "efa")


def with_compute(device: DeviceProfile, rates: dict[str, MatmulRates] | None, how: str, reason: str) -> DeviceProfile:
    """Return the device with its matrix rates."""
    if rates is None:
        return device.model_copy(update={"matmul_flops_per_second": {"fp32": unknown(reason)}})
    best: dict[str, Reading] = {}
    for precision, found in rates.items():
        if found.by_edge:
            large = [edge for edge in found.by_edge if 2 * edge >= max(found.by_edge)]  # not what fits into a cache
            edge = max(large, key=lambda n: found.by_edge[n])
            best[precision] = measured(found.by_edge[edge], f"fastest product of {edge}x{edge} matrices, {how}")
        else:
            best[precision] = unknown(found.reason or "no product was timed")
    by_size = {precision: dict(found.by_edge) for precision, found in rates.items() if found.by_edge}
    return device.model_copy(update={"matmul_flops_per_second": best, "matmul_by_size": by_size})


def memory_reading(rate: MemoryRate | None, how: str, reason: str) -> Reading:
    """Return a memory bandwidth."""
    if rate is None:
        return unknown(reason)
    return measured(rate.bytes_per_second, f"best of {rate.num_samples} triads, arrays of {rate.array_bytes} B, {how}")


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
    pieces = statistics.median_low([s.num_pieces for s in found.values()])
    return measured(
        worst.variation,
        f"least steady of {len(found)} devices, {pieces} pieces of {worst.piece_seconds:.3g} s, all devices at once",
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
