"""A cluster profile on the screen: what it is, what was measured, what looks wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console

from stratadvisor.report.console import console, heading, wrapped
from stratadvisor.report.format import percent, reading
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.units import format_bytes, format_flops, format_rate, format_seconds

MAX_NODES_SHOWN = 8
MAX_PAIRS_SHOWN = 10


def show_profile(profile: ClusterProfile) -> None:
    """Print a profile."""
    out = console()
    for node in profile.nodes[:MAX_NODES_SHOWN]:
        _node(out, node)
    if len(profile.nodes) > MAX_NODES_SHOWN:
        wrapped(out, f"... and {len(profile.nodes) - MAX_NODES_SHOWN} more nodes (--json shows all)")
    _node_pairs(out, profile)
    _collectives(out, profile)
    _findings(out, profile)


def _node(out: Console, node: NodeProfile) -> None:
    many = f" ({node.count} alike)" if node.count > 1 else ""
    out.print(heading(f"{node.hostname}{many}"))
    for name, text in (*_device_rows(node), *_host_rows(node), *_measured_rows(node)):
        wrapped(out, f"{name:<17}{text}", hang=17)


def _device_rows(node: NodeProfile) -> Iterator[tuple[str, str]]:
    for line, count in Counter(_device_line(d) for d in node.devices).items():
        yield "devices", f"{count} x {line}"
    for device in _different(node.devices):
        rates = sorted(device.matmul_flops_per_second.items())
        for precision, rate in rates:
            if rate.known:
                yield f"  {precision} matmul", reading(rate, format_flops)
        missing = [f"{precision} ({rate.detail})" for precision, rate in rates if not rate.known]
        if missing:
            yield "  no matmul rate", "; ".join(missing)
        yield "  memory rate", reading(device.memory_bandwidth_bytes_per_second, format_rate)
        if device.kind != "cpu":
            yield "  host to device", reading(device.host_to_device_bytes_per_second, format_rate)
            yield "  device to host", reading(device.device_to_host_bytes_per_second, format_rate)
    kinds = Counter(link.kind for link in node.links)
    if kinds:
        yield "links", ", ".join(f"{count} pairs by {kind}" for kind, count in kinds.items())


def _host_rows(node: NodeProfile) -> Iterator[tuple[str, str]]:
    cpu, memory = node.cpu, node.host_memory
    limited = f", limited by {cpu.limited_by}" if cpu.limited_by else ""
    yield "cpu", f"{cpu.model_name or 'unknown model'}; usable cores {reading(cpu.usable_cores, _plain)}{limited}"
    available, total = reading(memory.available_bytes, format_bytes), reading(memory.total_bytes, format_bytes)
    yield "host memory", f"{available} of {total}"
    if memory.limit_bytes.known:
        yield "  limit", f"{reading(memory.limit_bytes, format_bytes)} by {memory.limited_by}"
    yield "shared memory", f"{reading(memory.shared_memory_free_bytes, format_bytes)} free"
    for nic in node.nics:
        if nic.kind not in ("loopback", "virtual"):
            state = {True: "up", False: "down", None: "state unknown"}[nic.up]
            yield "network", f"{nic.name} {nic.kind} {state}, {reading(nic.rate_bytes_per_second, format_rate)}"


def _measured_rows(node: NodeProfile) -> Iterator[tuple[str, str]]:
    for storage in node.storage:
        yield "storage", f"{storage.path}: reads {reading(storage.read_bytes_per_second, format_rate)}"
    feed = node.data_feed
    if feed.item_seconds.known:
        item = reading(feed.item_seconds, format_seconds)
        yield "data feed", f"{item} an item, {_cpu_part(feed.item_cpu_seconds.value)}"
    if node.speed_variation.value is not None:
        yield "steadiness", f"speed varies by {percent(node.speed_variation.value)} ({node.speed_variation.origin})"
    for device in node.devices:
        if device.speed_over_time is not None:
            yield "", f"device {device.index} {device.speed_over_time.in_words}"
    versions = node.software.versions
    if versions:
        chosen = [n for n in ("python", "torch", "cuda", "driver", "nccl", "deepspeed") if n in versions]
        yield "software", ", ".join(f"{n} {versions[n]}" for n in chosen)


def _cpu_part(seconds: float | None) -> str:
    return "processor part unknown" if seconds is None else f"{format_seconds(seconds)} of it processor"


def _device_line(device: DeviceProfile) -> str:
    known = device.catalog_key or ("not in the catalog" if device.kind != "cpu" else "the processor itself")
    free = reading(device.memory_free_bytes, format_bytes)
    total = reading(device.memory_total_bytes, format_bytes)
    sick = "" if device.healthy is not False else f" NOT USABLE: {device.health_reason}"
    return f"{device.name} [{known}], {free} free of {total}{sick}"


def _different(devices: tuple[DeviceProfile, ...]) -> list[DeviceProfile]:
    """Return the first device of each name."""
    return list({device.name: device for device in reversed(devices)}.values())[::-1]


def _plain(value: float) -> str:
    return f"{value:g}"


def _node_pairs(out: Console, profile: ClusterProfile) -> None:
    """Print the links between nodes, the slowest first."""
    if not profile.node_pairs:
        return
    out.print(heading("links between nodes (measured over TCP)"))
    slowest = sorted(profile.node_pairs, key=lambda p: min(p.a_to_b_bytes_per_second, p.b_to_a_bytes_per_second))
    for pair in slowest[:MAX_PAIRS_SHOWN]:
        there, back = format_rate(pair.a_to_b_bytes_per_second), format_rate(pair.b_to_a_bytes_per_second)
        interfaces = " and ".join(dict.fromkeys(name for name in (pair.interface_a, pair.interface_b) if name))
        over = f", over {interfaces}" if interfaces else ""
        latency = format_seconds(pair.latency_seconds)
        wrapped(out, f"{pair.a} to {pair.b}: {there}, back {back}, latency {latency}{over}")
    if len(slowest) > MAX_PAIRS_SHOWN:
        wrapped(out, f"... and {len(slowest) - MAX_PAIRS_SHOWN} faster ones (--json shows all)")


def _collectives(out: Console, profile: ClusterProfile) -> None:
    if not profile.collectives:
        return
    out.print(heading("collectives"))
    for sweep in profile.collectives:
        where = "inside a node" if sweep.scope == "intra_node" else "between nodes"
        wrapped(
            out,
            f"{sweep.operation} {where}, {sweep.world_size} ranks, {sweep.backend}:"
            f" latency {reading(sweep.latency_seconds, format_seconds)},"
            f" bus bandwidth {reading(sweep.bus_bandwidth_bytes_per_second, format_rate)}",
        )
        for point in sweep.points:
            size, rate = format_bytes(point.message_bytes), format_rate(point.bus_bandwidth_bytes_per_second)
            wrapped(out, f"{size:<10}{format_seconds(point.seconds):<10}{rate}", indent=4)


def _findings(out: Console, profile: ClusterProfile) -> None:
    failed = [o for o in profile.observations if o.status in ("failed", "timed_out", "denied")]
    absent = [o for o in profile.observations if o.status in ("unsupported", "skipped")]
    out.print(heading("what looks wrong" if profile.verdicts or failed else "nothing looks wrong"))
    for verdict in profile.verdicts:
        style = {"problem": "red", "warning": "yellow", "info": ""}[verdict.level]
        advice = f" -> {verdict.advice}" if verdict.advice else ""
        wrapped(out, f"{verdict.level}: {verdict.subject}: {verdict.message}{advice}", style=style)
    for observation in failed:
        wrapped(
            out, f"{observation.probe} {observation.status.replace('_', ' ')}: {observation.reason}", style="yellow"
        )
    if absent:
        out.print(heading("not looked at"))
        for observation in absent:
            wrapped(out, f"{observation.probe}: {observation.reason}")
