"""Measured over predicted, kept for the next prediction of the same device and strategy."""

from __future__ import annotations

from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import Calibration, ClusterProfile
from stratadvisor.schema.validation import ValidationResult

PLAUSIBLE = (0.05, 20.0)
"""A ratio outside says that something else was measured; it is not kept."""


def device_key(plan: Plan, profile: ClusterProfile) -> str:
    """Return the catalog key of the plan's first group, or its device's name."""
    name = plan.groups[0].device_name
    for node in profile.nodes:
        for device in node.devices:
            if device.name == name:
                return device.catalog_key or device.name
    return name


def from_result(plan: Plan, profile: ClusterProfile, result: ValidationResult) -> Calibration | None:
    """Return the calibration of a completed run as planned; None for failed, scaled-down or implausible ones.

    The ratio is against the uncalibrated prediction: a plan that was already corrected by r and measured at m times
    its prediction gives r * m.
    """
    rows = {row.quantity: row for row in result.comparisons}
    ratio = rows["step time"].ratio if "step time" in rows else None
    if result.outcome != "completed" or result.proxy or ratio is None:
        return None
    device = device_key(plan, profile)
    memory = rows["peak memory per device"].ratio if "peak memory per device" in rows else None
    if result.strategy == plan.strategy and plan.predicted.calibrated:
        earlier = [c for c in profile.calibrations if (c.device, c.strategy) == (device, plan.strategy)]
        if earlier:
            ratio *= earlier[-1].time_ratio
            memory = memory * (earlier[-1].memory_ratio or 1.0) if memory is not None else None
    if not PLAUSIBLE[0] <= ratio <= PLAUSIBLE[1]:
        return None
    return Calibration(
        device=device,
        strategy=result.strategy,
        time_ratio=ratio,
        memory_ratio=memory if memory is not None and PLAUSIBLE[0] <= memory <= PLAUSIBLE[1] else None,
        model=plan.workload.model.name,
        steps=max(1, result.steps_done),
        world_size=plan.parallelism.world_size,
    )
