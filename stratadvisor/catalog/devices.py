"""Accelerators by name: dense peaks, memory, links, power, each with the datasheet it comes from."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from stratadvisor.schema.base import Precision
from stratadvisor.schema.profile import DeviceKind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PCIE_X16_BYTES_PER_SECOND = {3: 12.0e9, 4: 25.0e9, 5: 50.0e9, 6: 100.0e9}
"""What pinned copies reach over 16 lanes, one direction: about 80 % of the line rate (15.8, 31.5, 63, 126 GB/s)."""
_VENDOR_WORDS = re.compile(r"\b(nvidia|amd|corporation|tesla|instinct|radeon|geforce)\b|\((r|tm)\)")

_MEMORY_SUFFIX = re.compile(r"(.+)[\s_-]([0-9]{1,3})\s?Gi?B?", re.IGNORECASE)
_MEMORY_TOLERANCE = 0.08
"""Between the number on the box and what the driver reports in GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """Published figures of one accelerator; ``None`` where the vendor gives none."""

    key: str
    kind: DeviceKind
    architecture: str
    memory_bytes: float
    """What the driver reports as total."""
    memory_bandwidth_bytes_per_second: float
    peak_flops_per_second: dict[Precision, float]
    """Dense. fp32 is the ordinary units' rate; the rest is that of the matrix units with fp32 accumulation."""
    link_bytes_per_second: float | None
    """NVLink or Infinity Fabric of one device, one direction."""
    pcie_generation: int
    host_link_bytes_per_second: float
    """Device to host, one direction, as pinned copies reach it."""
    power_watts: float
    compute_capability: tuple[int, int] | None
    supports: frozenset[Precision]
    """Formats that the matrix units take; always has fp32."""
    unified_memory: bool
    names: tuple[str, ...]
    source: str


def _spec(key: str, entry: dict[str, Any]) -> DeviceSpec:
    peaks: dict[Precision, float] = {name: float(rate) for name, rate in entry["peak_flops_per_second"].items()}
    capability = entry.get("compute_capability")
    lanes = int(entry.get("pcie_lanes", 16))
    pcie = PCIE_X16_BYTES_PER_SECOND[entry["pcie_generation"]] * lanes / 16
    return DeviceSpec(
        key=key,
        kind=entry.get("kind", "cuda"),
        architecture=entry["architecture"],
        memory_bytes=float(entry["memory_bytes"]),
        memory_bandwidth_bytes_per_second=float(entry["memory_bandwidth_bytes_per_second"]),
        peak_flops_per_second=peaks,
        link_bytes_per_second=entry.get("link_bytes_per_second"),
        pcie_generation=entry["pcie_generation"],
        host_link_bytes_per_second=float(entry.get("host_link_bytes_per_second", pcie)),
        power_watts=float(entry["power_watts"]),
        compute_capability=(capability[0], capability[1]) if capability else None,
        supports=frozenset(entry.get("supports", peaks)),
        unified_memory=bool(entry.get("unified_memory", False)),
        names=tuple(entry.get("names", ())),
        source=entry["source"],
    )


def normalise(name: str) -> str:
    """Return a name without case, vendor words, spaces and dashes: ``NVIDIA A100-SXM4-80GB`` -> ``a100sxm480gb``."""
    return re.sub(r"[^a-z0-9.+]", "", _VENDOR_WORDS.sub(" ", name.lower()))


@lru_cache(maxsize=1)
def specs() -> dict[str, DeviceSpec]:
    """Return every entry by key, in the order of the file."""
    text = (files("stratadvisor.catalog") / "gpus.toml").read_text(encoding="utf-8")
    return {key: _spec(key, entry) for key, entry in tomllib.loads(text).items()}


@lru_cache(maxsize=1)
def _by_name() -> dict[str, DeviceSpec]:
    table: dict[str, DeviceSpec] = {}
    for spec in specs().values():
        for name in (spec.key, *spec.names):
            other = table.setdefault(normalise(name), spec)
            if other is not spec:
                raise AssertionError(f"gpus.toml: {name!r} names both {other.key} and {spec.key}")
    return table


def lookup(name: str) -> DeviceSpec | None:
    """Return the entry that ``name`` spells, or None.

    The whole name has to match: a laptop part, a MIG slice or a vGPU is not its big brother, and ``A100`` alone,
    which comes with 40 and with 80 GB, is nobody. A memory size behind the name (``RTX 3090 24GB``) has to be right.
    """
    if len(name) > 128:
        return None
    found = _by_name().get(normalise(name))
    sized = _MEMORY_SUFFIX.fullmatch(name) if found is None else None
    if sized is None:
        return found
    found = _by_name().get(normalise(sized.group(1)))
    stated = float(sized.group(2)) * 2**30
    if found is None or abs(found.memory_bytes - stated) > _MEMORY_TOLERANCE * stated:
        return None
    return found


def names() -> tuple[str, ...]:
    """Return every key and every short name, in the order of the file."""
    return tuple(dict.fromkeys(name for spec in specs().values() for name in (spec.key, *spec.names)))


def suggestions(name: str, limit: int = 4) -> tuple[str, ...]:
    """Return keys that ``name`` may have meant: those it begins, then near spellings."""
    wanted = normalise(name[:128])
    if not wanted:
        return ()
    table = _by_name()
    begins = [spec.key for text, spec in table.items() if text.startswith(wanted)]
    near = [table[text].key for text in difflib.get_close_matches(wanted, table, n=limit, cutoff=0.6)]
    return tuple(dict.fromkeys(begins + near))[:limit]
