"""Energy that a run took for its samples, from the counters in its log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stratadvisor.validate.metrics import RunMetrics, number

SOURCES = {"device": "devices", "host": "hosts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEnergy:
    """What the counters say, and whose they are."""

    joules_per_thousand_samples: float | None
    """Of devices and hosts together, as far as either is known."""
    origin: str
    """What was counted, and why the rest is unknown."""


def measured_energy(metrics: RunMetrics, warm: list[dict[str, Any]]) -> MeasuredEnergy:
    """Return the energy over the steps ``warm``: counters at the last less those at the first."""
    joules, said = 0.0, []
    counted = False
    for source, name in SOURCES.items():
        origin = str((metrics.start or {}).get(f"{source}_energy_origin", "unknown: the log does not say"))[:200]
        per_sample = _per_sample(warm, f"{source}_energy_joules")
        if per_sample is not None:
            joules, counted = joules + per_sample, True
            said.append(f"{name}: {origin}")
        elif origin.startswith("unknown: "):
            said.append(f"{name}: {origin}")
        else:
            said.append(f"{name}: unknown: too few readings of the {origin}")
    return MeasuredEnergy(joules_per_thousand_samples=1000 * joules if counted else None, origin="; ".join(said))


def _per_sample(steps: list[dict[str, Any]], key: str) -> float | None:
    """Return joules per sample between the first and the last reading of a counter that moved."""
    known = [(i, v) for i, s in enumerate(steps) if (v := number(s, key)) is not None]
    if len(known) < 2:
        return None
    (first, before), (last, after) = known[0], known[-1]
    samples = sum(number(s, "samples") or 0.0 for s in steps[first + 1 : last + 1])
    return (after - before) / samples if samples > 0 and after > before else None
