"""What a strategy is: a name, its family in the flowchart, the templates that write it, and its candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to spread training over devices."""

    name: str
    title: str
    family: str
    """One of ``schema.rules.FAMILIES``."""
    target: str
    """Template folder: torchrun, deepspeed or async."""
    candidates: Callable[[Cluster, Workload], Iterator[Candidate]]
    """Every configuration worth comparing, costed; those that do not fit carry the number that kills them.

    Nothing at all where the strategy has no meaning, as for HSDP on one node.
    """
