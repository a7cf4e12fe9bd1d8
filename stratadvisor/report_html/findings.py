"""What a profile's verdicts say, what was not looked at, what earlier runs left, and which inputs made the page."""

from __future__ import annotations

from itertools import islice

from stratadvisor import store
from stratadvisor.report.format import reading
from stratadvisor.report_html.markup import Html, Section, Table, e, join, lines, table, tag
from stratadvisor.report_html.subject import Subject
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile
from stratadvisor.units import format_bytes, format_flops, format_rate

MAX_ROWS = 390


def findings(profile: ClusterProfile) -> Section:
    """Return verdicts, failed looks and the figures of each kind of device."""
    parts: list[Html] = []
    for verdict in profile.verdicts:
        advice = f" Next: {verdict.advice}" if verdict.advice else ""
        text = f"{verdict.level}: {verdict.subject}: {verdict.message}.{advice}".replace("..", ".")
        parts.append(tag("p", e(text), class_=verdict.level))
    failed = [o for o in profile.observations if o.status in ("failed", "timed_out", "denied")]
    parts += [tag("p", e(f"{o.probe} {o.status.replace('_', ' ')}: {o.reason}"), class_="warning") for o in failed]
    if not parts:
        words = (
            "Nothing looks wrong."
            if profile.source != "declared"
            else "The cluster was described by hand; nothing was looked at."
        )
        parts.append(tag("p", e(words)))
    absent = [f"{o.probe}: {o.reason}" for o in profile.observations if o.status in ("unsupported", "skipped")]
    if absent:
        parts.append(tag("details", tag("summary", e(f"Not looked at ({len(absent)})")), lines(absent)))
    parts.append(
        tag(
            "details",
            tag("summary", e("Each device, with the origin of each figure")),
            table(_devices(profile), "Devices"),
        )
    )
    if profile.calibrations:
        rows = tuple(
            (
                c.device,
                c.strategy,
                c.model,
                f"{c.time_ratio:.3g} (measured)",
                "unknown" if c.memory_ratio is None else f"{c.memory_ratio:.3g} (measured)",
            )
            for c in profile.calibrations
        )
        columns = ("device", "strategy", "model", "time, measured / predicted", "memory, measured / predicted")
        parts.append(table(Table(columns=columns, rows=rows), "Kept from validation runs"))
    return Section(key="findings", title="What was found", intro=join(parts))


def _devices(profile: ClusterProfile) -> Table:
    every = ((node, device) for node in profile.nodes for device in node.devices)
    rows = [
        (node.hostname + (f" ({node.count} alike)" if node.count > 1 else ""), *_device(device))
        for node, device in islice(every, MAX_ROWS)
    ]
    left = sum(len(node.devices) for node in profile.nodes) - len(rows)
    if left > 0:
        rows.append((f"and {left} more devices", *[""] * 6))
    columns = ("node", "device", "memory free", "memory total", "memory rate", "products", "health")
    return Table(columns=columns, rows=tuple(rows))


def _device(device: DeviceProfile) -> tuple[str, ...]:
    rates = "; ".join(
        f"{p} {reading(r, format_flops)}" for p, r in sorted(device.matmul_flops_per_second.items()) if r.known
    )
    health = {True: "works", False: f"does not work: {device.health_reason}", None: "unknown"}[device.healthy]
    return (
        f"{device.index}: {device.name}",
        reading(device.memory_free_bytes, format_bytes),
        reading(device.memory_total_bytes, format_bytes),
        reading(device.memory_bandwidth_bytes_per_second, format_rate),
        rates or "unknown (not measured)",
        health,
    )


def provenance(subject: Subject) -> Html:
    """Return which inputs made the page; digests, no date: the same inputs give the same page."""
    said = []
    if subject.plan is not None:
        p = subject.plan.provenance
        said.append(
            f"Plan made by stratadvisor {p.stratadvisor_version} from profile {p.profile_digest},"
            f" workload {p.workload_digest}, rules {p.ruleset_digest}"
        )
        if p.overlays:
            said.append(f"overlays {', '.join(p.overlays)}")
    if subject.profile is not None:
        said.append(f"profile shown {store.digest(subject.profile)}")
    if subject.outcome is not None:
        said.append(f"validation result {store.digest(subject.outcome)}")
    if subject.comparison is not None:
        said.append(f"comparison {store.digest(subject.comparison)}")
    return tag("p", e("; ".join(said) + "."))
