"""Predicted beside measured."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median

from stratadvisor.schema.plan import Interval, NodeGroup, Plan
from stratadvisor.schema.validation import Comparison
from stratadvisor.validate.energy import MeasuredEnergy, measured_energy
from stratadvisor.validate.metrics import RunMetrics, column, number

MIN_STEPS_FOR_LOSS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run's metrics come to."""

    step_seconds: float | None
    tokens_per_second: float | None
    peak_device_bytes: float | None
    data_wait_fraction: float | None
    communication_fraction: float | None
    straggler_fraction: float | None
    energy: MeasuredEnergy
    loss_first: float | None
    loss_last: float | None
    loss_falling: bool | None
    notes: tuple[str, ...]


def measure(metrics: RunMetrics, plan: Plan) -> Measured:
    """Return medians over the steps after warm-up (the first quarter, at least two where there are five)."""
    steps = metrics.steps
    warm = steps[warmup_steps(len(steps)) :]
    notes: list[str] = []
    seconds = column(warm, "step_seconds")
    typical: float | None = None
    if seconds:
        typical = median(seconds)
        interval = plan.synchronization.sync_interval_steps
        if plan.synchronization.mode in ("local_sgd", "hierarchical") and interval > 1:
            # steps with and without an exchange differ: whole cycles are averaged
            whole = seconds[len(seconds) % interval :] if len(seconds) >= interval else []
            if whole:
                typical = fmean(whole)
            else:
                notes.append(f"the run is shorter than one exchange interval of {interval} steps: none was timed")
    tokens = column(warm, "tokens")
    rate = sum(tokens) / sum(seconds) if seconds and tokens and sum(seconds) > 0 else None
    peaks = column(steps, "peak_device_bytes")
    if metrics.end is not None and (last := number(metrics.end, "peak_device_bytes")) is not None:
        peaks.append(last)
    losses = column(steps, "loss")
    falling: bool | None = None
    if len(losses) >= MIN_STEPS_FOR_LOSS:
        third = len(losses) // 3
        falling = fmean(losses[-third:]) < fmean(losses[:third])
    return Measured(
        step_seconds=typical,
        tokens_per_second=rate,
        peak_device_bytes=max(peaks, default=None),
        data_wait_fraction=_share(warm, "data_wait_seconds"),
        communication_fraction=_share(warm, "communication_seconds"),
        straggler_fraction=_share(warm, "straggler_spread_seconds"),
        energy=measured_energy(metrics, warm),
        loss_first=losses[0] if losses else None,
        loss_last=losses[-1] if losses else None,
        loss_falling=falling,
        notes=(*notes, *_told(metrics)),
    )


def _told(metrics: RunMetrics) -> list[str]:
    """Return what the program said of its data, and of its changes."""
    said = [] if metrics.loader is None else [f"data: {str(metrics.loader.get('reason'))[:300]}"]
    return said + [f"changed after step {c.get('step')}: {str(c.get('reason'))[:300]}" for c in metrics.changes[:8]]


def warmup_steps(count: int) -> int:
    """Return how many first steps are left out of timings."""
    if count < 3:
        return min(1, max(0, count - 1))
    return max(2 if count >= 5 else 1, count // 4)


def _share(steps: list[dict[str, object]], key: str) -> float | None:
    pairs = [(v, s) for step in steps if (v := number(step, key)) is not None and (s := number(step, "step_seconds"))]
    total = sum(s for _, s in pairs)
    return sum(v for v, _ in pairs) / total if total > 0 else None


def comparisons(plan: Plan, measured: Measured) -> tuple[Comparison, ...]:
    """Return the rows of the table."""
    tightest = max(plan.groups, key=lambda g: g.memory_peak_bytes.likely)
    exposed = plan.predicted.exposed_communication_fraction
    return (
        _row("step time", "seconds", plan.predicted.step_seconds, measured.step_seconds),
        _row("tokens per second", "per_second", plan.predicted.tokens_per_second, measured.tokens_per_second),
        _row("peak memory per device", "bytes", _counted_memory(plan, tightest), measured.peak_device_bytes),
        Comparison(
            quantity="communication share",
            unit="fraction",
            predicted=Interval(low=exposed, likely=exposed, high=exposed),
            measured=measured.communication_fraction,
            note="exposed: time the step waits for it",
        ),
    )


def _counted_memory(plan: Plan, group: NodeGroup) -> Interval:
    """Return the predicted peak of what the training program counts: on a GPU the allocator's, without the context."""
    peak = group.memory_peak_bytes
    context = 0.0 if plan.device_kind == "cpu" else group.memory_terms_bytes.get("context", 0.0)
    low, likely, high = (max(0.0, value - context) for value in (peak.low, peak.likely, peak.high))
    return Interval(low=low, likely=likely, high=high)


def _row(quantity: str, unit: str, predicted: Interval, value: float | None) -> Comparison:
    if value is None:
        return Comparison(quantity=quantity, unit=unit, predicted=predicted, measured=None, note="not measured")
    return Comparison(
        quantity=quantity,
        unit=unit,
        predicted=predicted,
        measured=value,
        ratio=value / predicted.likely if predicted.likely > 0 else None,
        inside=predicted.low <= value <= predicted.high,
    )
