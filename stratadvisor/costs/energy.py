"""Energy of a step: device power between idle and its limit, by how much of the step it computes."""

from __future__ import annotations

from collections.abc import Sequence

from stratadvisor.costs.work import ClassWork
from stratadvisor.schema.layout import Span, TimeEstimate

IDLE_SHARE = (0.15, 0.25, 0.35)
"""Power over the limit while the device waits or communicates: low, likely, high."""
BUSY_SHARE = (0.60, 0.85, 1.0)
"""The same while it computes; large products run into the limit, memory-bound work stays under it."""


JOULES_PER_KILOWATT_HOUR = 3.6e6


def carbon_grams(joules: float, grams_per_kilowatt_hour: float) -> float:
    """Return the CO2 of an amount of electricity, in grams."""
    return joules / JOULES_PER_KILOWATT_HOUR * grams_per_kilowatt_hour


def busy_fraction(time: TimeEstimate) -> float:
    """Return the share of the step in which a device computes."""
    waiting = ("exposed_communication", "tensor_parallel", "pipeline_bubble", "data_wait", "straggler", "offload")
    total = sum(time.terms_seconds.values())
    idle = sum(time.terms_seconds.get(name, 0.0) for name in waiting)
    return 1.0 if total <= 0 else max(0.0, min(1.0, 1.0 - idle / total))


def step_energy_joules(time: TimeEstimate, work: Sequence[ClassWork], num_devices: int | None = None) -> Span | None:
    """Return the joules that all devices of ``work`` take in one step; None when a device's power is not known.

    Hosts, switches and cooling are not in it. ``num_devices`` scales to fewer devices than the classes have.
    """
    power = 0.0
    devices = 0
    for share in work:
        watts = share.node_class.device.power_watts
        if watts is None:
            return None
        power += watts * share.node_class.num_devices
        devices += share.node_class.num_devices
    if num_devices is not None and devices:
        power *= num_devices / devices
    busy = busy_fraction(time)
    low, likely, high = (
        power * (idle * (1 - busy) + full * busy) for idle, full in zip(IDLE_SHARE, BUSY_SHARE, strict=True)
    )
    step = time.step_seconds
    return Span(low=low * step.low, likely=likely * step.likely, high=high * step.high)
