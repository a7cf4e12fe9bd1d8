"""Facts about the hosts: cores, memory, storage, and what feeding the devices takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from stratadvisor.derive.context import Context, fastest, known, origin_of, spec, tightest, unknown
from stratadvisor.schema.facts import Fact

SPECS = (
    spec("cpu.cores_per_device", "number", "count", "usable cores of a node over its devices (poorest class)"),
    spec("cpu.cores_known", "boolean", "", "whether the usable cores of every node are known"),
    spec("cpu.threads_per_device", "number", "count", "whole threads for each training process, at least one"),
    spec("host.memory_bytes", "number", "bytes", "host memory that training can use on a node (poorest class)"),
    spec("host.pinned_memory_capped", "boolean", "", "whether a node runs under WSL2, which caps pinned memory"),
    spec("host.shared_memory_bytes", "number", "bytes", "free shared memory (/dev/shm) of a node (poorest class)"),
    spec("storage.read_bytes_per_second", "number", "bytes_per_second", "measured read rate (slowest class)"),
    spec(
        "data.feed_ratio",
        "number",
        "ratio",
        "time that one process needs to prepare a device's sequences of a step over the time of that step",
    ),
    spec("data.io_bound", "boolean", "", "whether preparing an item is mostly waiting, not computing"),
    spec(
        "data.workers_needed",
        "number",
        "count",
        "loader processes per device that keep up: the feed ratio rounded up, and one",
    ),
    spec(
        "data.workers_available",
        "number",
        "count",
        "loader processes per device that the cores carry: one core stays with training, four that wait share a core",
    ),
    spec("data.workers_default", "number", "count", "loader processes per device where the feed was not measured"),
)
IO_BOUND_CPU_SHARE = 0.5
WAITING_WORKERS_PER_CORE = 4
DEFAULT_WORKERS = 2


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    classes = context.cluster.classes
    cores = tightest(
        "cpu.cores_per_device",
        classes,
        lambda c: None if c.cpu_cores is None else c.cpu_cores / c.devices_per_node,
        "cpu_cores",
        "the usable cores are not known",
    )
    yield cores
    yield known("cpu.cores_known", cores.value is not None, "estimated", cores.because)
    threads = "cpu.threads_per_device"
    each = cores.value if isinstance(cores.value, float) else None
    if each is None:
        yield unknown(threads, cores.because)
    else:
        yield known(threads, max(1, math.floor(each)), cores.origin)
    yield tightest(
        "host.memory_bytes",
        classes,
        lambda c: c.host_memory_bytes,
        "host_memory_bytes",
        "host memory is not known",
    )
    yield tightest(
        "host.shared_memory_bytes",
        classes,
        lambda c: c.shared_memory_bytes,
        "shared_memory_bytes",
        "shared memory is not known",
    )
    yield _pinned_memory_capped(context)
    yield tightest(
        "storage.read_bytes_per_second",
        classes,
        lambda c: c.storage_read_bytes_per_second,
        "storage_read_bytes_per_second",
        "the read rate was not measured",
    )
    yield from _feed(context, each)


def _pinned_memory_capped(context: Context) -> Fact:
    name = "host.pinned_memory_capped"
    kernels = {node.hostname: node.software.versions.get("linux", "") for node in context.profile.nodes}
    inside = [f"{host}: kernel {kernel}" for host, kernel in kernels.items() if "microsoft" in kernel.lower()]
    if inside:
        return known(name, True, "reported", inside[0])
    if not all(kernels.values()):
        return unknown(name, "the kernel's release is not known")
    return known(name, False, "reported")


def _feed(context: Context, cores_per_device: float | None) -> Iterator[Fact]:
    ratio = feed_ratio(context)
    yield ratio
    waiting = _io_bound(context)
    yield waiting
    if isinstance(ratio.value, float):
        yield known("data.workers_needed", math.ceil(ratio.value) + 1, ratio.origin)
    else:
        yield unknown("data.workers_needed", ratio.because)
    if cores_per_device is None:
        yield unknown("data.workers_available", "the usable cores are not known")
        because = "the usable cores are not known; so few workers find room nearly everywhere"
        yield known("data.workers_default", DEFAULT_WORKERS, "estimated", because)
        return
    spare = max(0, math.floor(cores_per_device) - 1)
    available = spare * WAITING_WORKERS_PER_CORE if waiting.value is True else spare
    yield known("data.workers_available", available, "estimated")
    yield known("data.workers_default", min(spare, DEFAULT_WORKERS), "estimated", "one core stays with training")


def feed_ratio(context: Context) -> Fact:
    """Return how many loader processes the hungriest device of the fastest configuration would keep busy."""
    name = "data.feed_ratio"
    best = fastest(context.feasible)
    if best is None or best.time.step_seconds.likely <= 0:
        return unknown(name, "no configuration fits")
    ratios: list[float] = []
    for share in best.shares:
        item = context.classes[share.node_class].data_item_seconds
        if item is None:
            return unknown(name, f"the data feed was not measured on {share.node_class}")
        ratios.append(share.batch_per_device * item / best.time.step_seconds.likely)
    if not ratios:
        return unknown(name, "no configuration fits")
    origin = origin_of(context.classes[best.shares[0].node_class], "data_item_seconds")
    return known(name, max(ratios), origin, f"with {best.strategy}, {best.variant}")


def _io_bound(context: Context) -> Fact:
    name = "data.io_bound"
    shares = [
        feed.item_cpu_seconds.value / feed.item_seconds.value
        for feed in (node.data_feed for node in context.profile.nodes)
        if feed.item_cpu_seconds.value is not None and feed.item_seconds.value
    ]
    if not shares:
        return unknown(name, "the data feed was not measured")
    return known(name, max(shares) < IO_BOUND_CPU_SHARE, "measured", f"{max(shares):.0%} of an item's time computes")
