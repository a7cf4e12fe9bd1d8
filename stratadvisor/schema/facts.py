"""Facts: the named quantities that rules compare."""

from __future__ import annotations

from typing import Literal

from stratadvisor.schema.base import Document, Origin

FactType = Literal["number", "boolean", "text"]
FactValue = float | bool | str | None


class FactSpec(Document):
    """Declaration of a fact."""

    name: str
    """Dotted: ``cluster.speed_spread``."""
    type: FactType
    unit: str = ""
    """bytes, bytes_per_second, seconds, fraction, count, or empty for texts and booleans."""
    description: str


class Fact(Document):
    """A computed fact; ``value=None`` is unknown and ``because`` then says why."""

    name: str
    value: FactValue
    origin: Origin
    because: str = ""
