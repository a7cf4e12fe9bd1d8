"""Links by name: rate of one direction, latency of a hop, and where the figure comes from."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LinkUse = Literal["network", "device", "host"]
"""network: one port of a node; device: all links of one device together; host: device to host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Published rate of a link."""

    key: str
    kind: LinkUse
    rate_bytes_per_second: float
    """One direction."""
    latency_seconds: float
    names: tuple[str, ...]
    source: str


def _normalise(name: str) -> str:
    return re.sub(r"[\s_-]|infiniband|ethernet$", "", name.lower())


@lru_cache(maxsize=1)
def specs() -> dict[str, LinkSpec]:
    """Return every entry by key, in the order of the file."""
    text = (files("stratadvisor.catalog") / "links.toml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {
        key: LinkSpec(
            key=key,
            kind=entry["kind"],
            rate_bytes_per_second=float(entry["rate_bytes_per_second"]),
            latency_seconds=float(entry["latency_seconds"]),
            names=tuple(entry.get("names", ())),
            source=entry["source"],
        )
        for key, entry in entries.items()
    }


@lru_cache(maxsize=1)
def _by_name() -> dict[str, LinkSpec]:
    return {_normalise(name): spec for spec in specs().values() for name in (spec.key, *spec.names)}


def lookup(name: str) -> LinkSpec | None:
    """Return the link that ``name`` spells (``NDR``, ``InfiniBand HDR``, ``100GbE``, ``NVLink4``), or None."""
    return _by_name().get(_normalise(name)) if len(name) <= 64 else None


def names(kind: LinkUse | None = None) -> tuple[str, ...]:
    """Return the keys of all links, or of one kind, in the order of the file."""
    return tuple(key for key, spec in specs().items() if kind is None or spec.kind == kind)
