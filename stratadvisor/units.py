"""Quantities with units: parse what people write, format what people read.

Inside the program there is one unit per dimension (bytes, seconds, bytes per second, FLOP per second) and it is part
of every name. A bare number is refused wherever a unit matters, since GB/s and Gb/s differ by eight.
"""

from __future__ import annotations

import math
import re
from typing import Literal

Dimension = Literal["bytes", "bytes_per_second", "seconds", "flops_per_second", "count", "grams_per_kilowatt_hour"]

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3, "Ti": 1024.0**4}
_COUNT = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "b": 1e9, "T": 1e12, "t": 1e12}
_TIME = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER = re.compile(r"^\s*([0-9]+(?:[_,][0-9]{3})*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)\s*(\S*)\s*$")
_EXAMPLES = {
    "bytes": "80GB or 74.5GiB",
    "bytes_per_second": "200Gb/s or 25GB/s",
    "seconds": "2ms or 30min",
    "flops_per_second": "312TFLOP/s",
    "count": "7B or 350M",
    "grams_per_kilowatt_hour": "400gCO2/kWh",
}


def _split(text: str, dimension: Dimension) -> tuple[float, str]:
    match = _NUMBER.match(text) if len(text) <= 64 else None
    if match is None:
        raise ValueError(f"{text[:64]!r} is not a quantity; write for example {_EXAMPLES[dimension]}")
    value = float(match.group(1).replace("_", "").replace(",", ""))
    if not math.isfinite(value):
        raise ValueError(f"{text[:64]!r} is too large a number")
    return value, match.group(2)


def _scale(prefix: str) -> float | None:
    return _BINARY.get(prefix, _DECIMAL.get(prefix))


def _data_unit(unit: str) -> float | None:
    """Return bytes per unit of ``GB``, ``GiB``, ``Gb``, ``Gbit``; None when it is none of these."""
    for suffix, bytes_each in (
        ("bits", 0.125),
        ("bit", 0.125),
        ("bytes", 1.0),
        ("byte", 1.0),
        ("B", 1.0),
        ("b", 0.125),
    ):
        if unit.endswith(suffix):
            scale = _scale(unit[: -len(suffix)])
            return None if scale is None else scale * bytes_each
    return None


def parse_quantity(text: str, dimension: Dimension) -> float:
    """Return ``text`` in the base unit of ``dimension``.

    Raises:
        ValueError: no number, no unit where one is needed, or a unit of another dimension.

    """
    value, unit = _split(text, dimension)
    factor: float | None
    if dimension == "count":
        factor = _COUNT.get(unit)
    elif dimension == "bytes":
        factor = None if unit.endswith(("b", "bit", "bits")) and not unit.endswith("B") else _data_unit(unit)
    elif dimension == "bytes_per_second":
        rate = re.sub(r"(/s|ps|/sec)$", "", unit)
        factor = _data_unit(rate) if rate != unit else None
    elif dimension == "flops_per_second":
        match = re.fullmatch(r"([kKMGTP]?)(?:FLOP/s|FLOPS|FLOPs|FLOPs/s|FLOP/sec)", unit)
        factor = _DECIMAL[match.group(1)] if match else None
    elif dimension == "grams_per_kilowatt_hour":
        match = re.fullmatch(r"(k?)g(?:CO2(?:eq?)?)?/([kM])Wh", unit)
        factor = (1e3 if match.group(1) else 1.0) / (1e3 if match.group(2) == "M" else 1.0) if match else None
    else:
        factor = _TIME.get(unit)
    if factor is None:
        what = "has no unit" if not unit else f"has the unit {unit!r}, which is not one of this kind"
        raise ValueError(f"{text[:64]!r} {what}; write for example {_EXAMPLES[dimension]}")
    result = value * factor
    if not math.isfinite(result):
        raise ValueError(f"{text[:64]!r} is too large a number")
    return result


def _trim(value: float, digits: int = 3) -> str:
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _prefixed(value: float, unit: str) -> str:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{_trim(value / factor)} {prefix}{unit}"
    return f"{_trim(value)} {unit}"


def format_bytes(value: float) -> str:
    """Return a memory size in binary units, as device memory is counted: ``74.5 GiB``."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= factor * 0.9995:
            return f"{_trim(value / factor)} {unit}"
    return f"{_trim(value)} B"


def format_rate(bytes_per_second: float) -> str:
    """Return a transfer rate in decimal units: ``25 GB/s``."""
    return _prefixed(bytes_per_second, "B/s")


def format_flops(flops_per_second: float) -> str:
    """Return an arithmetic rate: ``312 TFLOP/s``."""
    return _prefixed(flops_per_second, "FLOP/s")


def format_seconds(value: float) -> str:
    """Return a duration a person reads at a glance: ``1.82 s``, ``340 ms``, ``3.2 h``, ``12 d``."""
    size = abs(value)
    if size >= 86400 * 2:
        return f"{_trim(value / 86400)} d"
    if size >= 7200:
        return f"{_trim(value / 3600)} h"
    if size >= 120:
        return f"{_trim(value / 60)} min"
    if size >= 0.9995:
        return f"{_trim(value)} s"
    if size >= 0.9995e-3:
        return f"{_trim(value * 1e3)} ms"
    return f"{_trim(value * 1e6)} us"


def format_count(value: float) -> str:
    """Return a count of parameters or tokens: ``6.74B``, ``512``, ``1.05M``."""
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "")):
        if abs(value) >= factor * 0.9995:
            return f"{_trim(value / factor)}{unit}" if unit else f"{value / 1e3:.1f}k"
    return _trim(value, 4)
