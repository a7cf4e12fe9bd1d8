"""Intervals, shares and origins as text."""

from __future__ import annotations

from collections.abc import Callable

from stratadvisor.schema.base import Reading
from stratadvisor.schema.plan import Interval
from stratadvisor.schema.validation import ValidationResult

UNKNOWN = "unknown"


def interval(value: Interval, show: Callable[[float], str]) -> str:
    """Return ``3.2 s (2.7 s to 3.8 s)``."""
    if value.low == value.high:
        return show(value.likely)
    return f"{show(value.likely)} ({show(value.low)} to {show(value.high)})"


def reading(value: Reading, show: Callable[[float], str]) -> str:
    """Return the number with its origin, or ``unknown`` with the reason."""
    if value.value is None:
        return f"{UNKNOWN} ({value.detail})" if value.detail else UNKNOWN
    return f"{show(value.value)} ({value.origin})"


def percent(fraction: float) -> str:
    """Return ``12 %``, ``0.4 %``."""
    size = fraction * 100
    return f"{size:.0f} %" if abs(size) >= 1 or size == 0 else f"{size:.1f} %"


def bar(share: float, width: int = 30) -> str:
    """Return a bar of ``width`` characters; more than full ends in ``!``."""
    filled = round(max(0.0, min(1.0, share)) * width)
    text = "#" * filled + "." * (width - filled)
    return text[:-1] + "!" if share > 1 else text


def energy(joules: float) -> str:
    """Return kilowatt hours, or joules where that is clearer."""
    kilowatt_hours = joules / 3.6e6
    if kilowatt_hours >= 1000:
        return f"{kilowatt_hours / 1000:.3g} MWh"
    if kilowatt_hours >= 0.1:
        return f"{kilowatt_hours:.3g} kWh"
    return f"{joules / 1000:.3g} kJ" if joules >= 1000 else f"{joules:.3g} J"


def mass(grams: float) -> str:
    """Return grams, kilograms or tonnes."""
    for factor, unit in ((1e6, "t"), (1e3, "kg")):
        if grams >= factor:
            return f"{grams / factor:.3g} {unit}"
    return f"{grams:.3g} g"


def measured_energy(result: ValidationResult) -> str:
    """Return what a run's counters say of a thousand samples, and whose counters they are."""
    joules, carbon = result.energy_joules_per_thousand_samples, result.carbon_grams_per_thousand_samples
    said = UNKNOWN if joules is None else f"{energy(joules)} per thousand samples"
    if carbon is not None:
        said += f", {mass(carbon)} of CO2 at the given grid intensity"
    return f"{said} ({result.energy_origin})"
