"""Which nodes are slower than their equals: the speed of each against the median of all with the same devices."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from stratadvisor.schema.profile import DeviceProfile, NodeProfile, Verdict
from stratadvisor.units import format_flops

SLOW_SHARE, BAD_SHARE = 0.85, 0.6
"""Of the median of equal nodes: equal cards repeat within 2 to 5 %."""
MOST_NAMED = 20
_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")


def _speed(node: NodeProfile) -> tuple[str, float] | None:
    """Return the precision and the rate of the slowest device; None when not all were measured."""
    usable = [device for device in node.devices if device.healthy is not False]
    for precision in _PRECISIONS:
        values = [_timed(device, precision) for device in usable]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            return precision, min(known)
    return None


def _timed(device: DeviceProfile, precision: str) -> float | None:
    reading = device.matmul_flops_per_second.get(precision)
    return reading.value if reading is not None and reading.origin == "measured" else None


def spread_verdicts(nodes: Sequence[NodeProfile]) -> tuple[Verdict, ...]:
    """Return a finding for every node that is slower than its equals, the slowest first, at most ``MOST_NAMED``."""
    equals: dict[tuple[object, ...], list[tuple[float, NodeProfile]]] = defaultdict(list)
    for node in nodes:
        speed = _speed(node)
        if speed is not None:
            names = tuple(sorted(device.catalog_key or device.name for device in node.devices))
            equals[names, speed[0]].append((speed[1], node))
    found: list[tuple[float, Verdict]] = []
    for (_, precision), members in equals.items():
        if len(members) < 2:
            continue
        # of two, the faster one shows what the device can do
        usual = statistics.median_high([speed for speed, _ in members])
        found += [
            (speed / usual, _verdict(node, str(precision), speed, usual))
            for speed, node in members
            if speed < SLOW_SHARE * usual
        ]
    ordered = [verdict for _, verdict in sorted(found, key=lambda item: item[0])]
    if len(ordered) > MOST_NAMED:
        left = len(ordered) - MOST_NAMED
        text = f"{left} more nodes are slower than {SLOW_SHARE:.0%} of their equals"
        ordered = [*ordered[:MOST_NAMED], Verdict(level="warning", subject="nodes", message=text)]
    return tuple(ordered)


def _verdict(node: NodeProfile, precision: str, speed: float, usual: float) -> Verdict:
    share, variation = speed / usual, node.speed_variation.value
    text = (
        f"slow node: {precision} products run at {format_flops(speed)} on its slowest device, {share:.0%} of what is"
        f" usual for its equals ({format_flops(usual)})"
    )
    changing = next((d.speed_over_time for d in node.devices if d.speed_over_time is not None), None)
    if changing is not None:
        text += f"; it {changing.in_words}"
    elif variation is not None:
        text += f"; what it does in equal times varies by {variation:.0%}"
    if variation is not None and variation > 1 - share:
        advice = "it is unsteady rather than slow: look for other users of the node, and probe again when it is quiet"
    elif any(device.kind != "cpu" for device in node.devices):
        advice = "compare clocks, power limits, temperature and other users with an equal node (nvidia-smi -q)"
    else:
        advice = "look for a processor quota, other users, a power-saving governor or throttling"
    return Verdict(
        level="problem" if share < BAD_SHARE else "warning", subject=node.hostname, message=text, advice=advice
    )
