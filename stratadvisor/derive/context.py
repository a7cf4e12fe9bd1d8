"""What every fact is computed from, and the small tools that make facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from stratadvisor.schema.base import Origin
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.facts import Fact, FactSpec, FactType, FactValue
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.schema.workload import Workload

_TRUST: tuple[Origin, ...] = ("measured", "reported", "catalog", "declared", "estimated", "unknown")
"""From the most to the least trusted; a computed value is as good as its worst input."""

EXACT = ("single", "synchronous", "uneven_synchronous")
"""Families whose gradient is that of the whole batch, so that they need no further steps."""

Family = Callable[[Candidate], str]
"""Candidate -> family of the flowchart."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of one derivation."""

    profile: ClusterProfile
    cluster: Cluster
    workload: Workload
    candidates: tuple[Candidate, ...]
    family_of: Family

    @cached_property
    def feasible(self) -> tuple[Candidate, ...]:
        """Candidates that fit."""
        return tuple(c for c in self.candidates if c.feasible)

    @cached_property
    def families(self) -> tuple[tuple[Candidate, str], ...]:
        """Every candidate with its family: a dozen facts ask for it."""
        return tuple((c, self.family_of(c)) for c in self.candidates)

    @cached_property
    def classes(self) -> dict[str, NodeClass]:
        """Node classes by name."""
        return {c.name: c for c in self.cluster.classes}

    def of_family(self, *families: str) -> tuple[Candidate, ...]:
        """Return the candidates of these families that fit."""
        return tuple(c for c, family in self.families if c.feasible and family in families)

    def widest(self, *families: str) -> tuple[Candidate, ...]:
        """Return those of ``of_family`` that use the most devices: all of them, where that fits."""
        found = self.of_family(*families)
        most = max((c.num_devices for c in found), default=0)
        return tuple(c for c in found if c.num_devices == most)


def fastest(candidates: Iterable[Candidate]) -> Candidate | None:
    """Return the candidate with the least predicted time to the target; None of none."""
    return min(candidates, key=lambda c: (c.run_seconds.likely, c.strategy, c.variant), default=None)


def worst_origin(origins: Iterable[Origin]) -> Origin:
    """Return the least trusted origin; estimated for none."""
    return max(origins, key=_TRUST.index, default="estimated")


def spec(name: str, kind: FactType, unit: str, description: str) -> FactSpec:
    """Return the declaration of a fact."""
    return FactSpec(name=name, type=kind, unit=unit, description=description)


def known(name: str, value: FactValue, origin: Origin, because: str = "") -> Fact:
    """Return a fact with a value."""
    return Fact(name=name, value=value, origin=origin, because=because)


def unknown(name: str, reason: str) -> Fact:
    """Return an absent fact and why it is absent."""
    return Fact(name=name, value=None, origin="unknown", because=reason)


def tightest(
    name: str, classes: Iterable[NodeClass], value: Callable[[NodeClass], float | None], field: str, reason: str
) -> Fact:
    """Return the smallest value over node classes; unknown when one class does not know it."""
    found = [(value(c), c) for c in classes]
    missing = [c.name for v, c in found if v is None]
    if missing or not found:
        return unknown(name, f"{reason}{f' on {missing[0]}' if missing else ''}")
    low, at = min(((v, c) for v, c in found if v is not None), key=lambda pair: pair[0])
    return known(name, low, origin_of(at, field), f"on {at.name}" if len(found) > 1 else "")


def origin_of(node_class: NodeClass, field: str) -> Origin:
    """Return where a field of a class comes from."""
    origin = node_class.origins.get(field, "estimated")
    return "estimated" if origin == "unknown" else origin


Derivation = Callable[[Context], Iterator[Fact]]
