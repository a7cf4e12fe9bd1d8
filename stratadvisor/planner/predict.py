"""What a step and a run should cost: time, tokens per second, utilisation, energy, money."""

from __future__ import annotations

from stratadvisor.costs.energy import carbon_grams, step_energy_joules
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Span
from stratadvisor.schema.plan import Interval, Prediction
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.common import class_work, run_steps
from stratadvisor.strategies.fit import calibration
from stratadvisor.strategies.run_length import run_tokens

_PEAK_OF = {"bf16": "bf16", "bf16_pure": "bf16", "fp16": "fp16", "fp32": "fp32"}


def predict(chosen: Candidate, part: Cluster, workload: Workload) -> Prediction:
    """Return the prediction of a candidate on the part of the cluster that it uses."""
    time = chosen.time
    steps = max(1, round(run_steps(workload, chosen.global_batch_size) * (1 + chosen.extra_steps_fraction)))
    calibrated = any(calibration(part.calibration_time_ratios, c, chosen.strategy) is not None for c in part.classes)
    energy = _energy(chosen, part)
    grid = workload.grid_carbon_grams_per_kilowatt_hour
    return Prediction(
        step_seconds=interval(time.step_seconds),
        tokens_per_second=_per(time.step_seconds, time.tokens_per_step),
        model_flops_utilization=_utilization(chosen, part),
        run_seconds=interval(chosen.run_seconds),
        run_tokens=run_tokens(workload) * (1 + chosen.extra_steps_fraction),
        run_steps=steps,
        energy_joules=energy,
        energy_joules_per_thousand_samples=_scaled(energy, 1000 / (steps * chosen.global_batch_size)),
        carbon_grams=_scaled(energy, None if grid is None else carbon_grams(1.0, grid)),
        cost=_cost(chosen, workload),
        time_terms_seconds=time.terms_seconds,
        exposed_communication_fraction=min(1.0, max(0.0, time.exposed_communication_fraction)),
        model_flops_per_step=time.model_flops_per_step,
        calibrated=calibrated,
    )


def interval(span: Span) -> Interval:
    """Return the document form of a span."""
    return Interval(low=span.low, likely=span.likely, high=span.high)


def _scaled(amount: Interval | None, factor: float | None) -> Interval | None:
    """Return an interval times a factor; None where either is unknown."""
    if amount is None or factor is None:
        return None
    return Interval(low=amount.low * factor, likely=amount.likely * factor, high=amount.high * factor)


def _per(step: Span, amount: float) -> Interval:
    return Interval(low=amount / step.high, likely=amount / step.likely, high=amount / step.low)


def _utilization(chosen: Candidate, part: Cluster) -> Interval | None:
    """Return MFU against the dense catalog peaks of all devices used; None when one of them has none."""
    wanted = _PEAK_OF[chosen.layout.precision]
    total = 0.0
    for node_class in part.classes:
        peak = node_class.device.peak_flops_per_second.get(wanted)
        if peak is None or node_class.device.kind == "cpu":
            return None
        total += node_class.num_devices * peak
    return _per(chosen.time.step_seconds, chosen.time.model_flops_per_step / total)


def _cost(chosen: Candidate, workload: Workload) -> Interval | None:
    if workload.price_per_device_hour is None:
        return None
    return interval(chosen.run_seconds.scaled(workload.price_per_device_hour * chosen.num_devices / 3600))


def _energy(chosen: Candidate, part: Cluster) -> Interval | None:
    """Return the joules of all devices over the run; hosts and switches are not in it."""
    step = step_energy_joules(chosen.time, class_work(chosen, part))
    if step is None or chosen.time.step_seconds.likely <= 0:
        return None
    return interval(step.scaled(chosen.run_seconds.likely / chosen.time.step_seconds.likely))
