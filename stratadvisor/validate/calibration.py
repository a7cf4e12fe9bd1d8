"""Measured over predicted, kept for the next prediction of the same device and strategy."""

from __future__ import annotations

from statistics import fmean, quantiles

from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import Calibration, ClusterProfile
from stratadvisor.schema.validation import ValidationResult
from stratadvisor.units import format_seconds
from stratadvisor.validate.compare import warmup_steps

PLAUSIBLE = (0.05, 20.0)
"""A ratio outside says that something else was measured; it is not kept."""
MOST_SPREAD = 0.22
"""Largest spread of a run's steps: the median of the ten or twenty that are timed is then known to 5 to 9 %, less than
the doubt that a calibrated prediction admits."""
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution in standard deviations."""
FEWEST_TIMED = 3


def device_key(plan: Plan, profile: ClusterProfile) -> str:
    """Return the catalog key of the plan's first group, or its device's name."""
    name = plan.groups[0].device_name
    for node in profile.nodes:
        for device in node.devices:
            if device.name == name:
                return device.catalog_key or device.name
    return name


def spread(seconds: list[float]) -> float:
    """Return the coefficient of variation from the quartiles: one step that hiccups does not move the median either."""
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / NORMAL_QUARTILES / middle if middle > 0 else float("inf")


def timed_seconds(plan: Plan, result: ValidationResult) -> list[float]:
    """Return seconds of the steps after warm-up, or of a step in each whole cycle where steps with exchanges differ."""
    seconds = list(result.step_seconds)
    warm = seconds[warmup_steps(len(seconds)) :]
    sync = plan.synchronization
    if sync.mode in ("local_sgd", "hierarchical") and sync.sync_interval_steps > 1:
        interval = sync.sync_interval_steps
        whole = warm[len(warm) % interval :]
        if len(whole) >= FEWEST_TIMED * interval:
            return [fmean(whole[i : i + interval]) for i in range(0, len(whole), interval)]
    return warm


def refusal(plan: Plan, result: ValidationResult) -> str:
    """Return why a completed run as planned gives no calibration, nothing where it does or is no such run."""
    ratio = _ratio(result)
    if result.outcome != "completed" or result.proxy or ratio is None:
        return ""
    seconds = timed_seconds(plan, result)
    name = f"the run of {result.strategy} is not kept as a calibration"
    if len(seconds) < FEWEST_TIMED:
        return (
            f"{name}: {len(seconds)} of its steps were timed, at least {FEWEST_TIMED} are needed; ask for more --steps"
        )
    varied = spread(seconds)
    if varied > MOST_SPREAD:
        low, _, high = quantiles(seconds, n=4, method="inclusive")
        return (
            f"{name}: its steps vary by {varied:.0%} (the middle half took {format_seconds(low)} to"
            f" {format_seconds(high)}), more than the {MOST_SPREAD:.0%} up to which their median is worth keeping;"
            " run it again when nothing else runs here"
        )
    if not PLAUSIBLE[0] <= ratio <= PLAUSIBLE[1]:
        return f"{name}: {ratio:.3g} times the predicted time says that something else was measured"
    return ""


def _ratio(result: ValidationResult) -> float | None:
    """Return measured over predicted time of a step."""
    return next((row.ratio for row in result.comparisons if row.quantity == "step time"), None)


def from_result(plan: Plan, profile: ClusterProfile, result: ValidationResult) -> Calibration | None:
    """Return the calibration of a completed run as planned; None for failed, scaled-down, unsteady or implausible ones.

    The ratio is against the uncalibrated prediction: a plan that was already corrected by r and measured at m times
    its prediction gives r * m.
    """
    rows = {row.quantity: row for row in result.comparisons}
    ratio = _ratio(result)
    if result.outcome != "completed" or result.proxy or ratio is None or refusal(plan, result):
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
