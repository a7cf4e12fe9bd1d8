"""Strategies of installed plug-ins: checked when they load, guarded when they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from stratadvisor import plugins
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.rules import FAMILIES
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy

GROUP = "stratadvisor.strategies"


def plugged(taken: tuple[str, ...]) -> dict[str, Strategy]:
    """Return the plug-ins' strategies by name; one that is wrong is left out and named."""
    found: dict[str, Strategy] = {}
    of_name = {p.name: p for p in plugins.of_group(GROUP)}
    for name, strategy in plugins.load(GROUP, Strategy, taken).items():
        plugin = of_name[name]
        if strategy.name != name:
            plugins.leave_out(plugin, f"its strategy calls itself {strategy.name!r}")
        elif strategy.family not in FAMILIES:
            plugins.leave_out(plugin, f"family {strategy.family!r} is not one of {', '.join(FAMILIES)}")
        else:
            found[name] = replace(strategy, candidates=_guarded(plugin, strategy))
    return found


def _guarded(plugin: plugins.Plugin, strategy: Strategy) -> Callable[[Cluster, Workload], Iterator[Candidate]]:
    def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
        try:
            made = list(strategy.candidates(cluster, workload))
        except Exception as problem:
            plugins.leave_out(plugin, f"it fails on this cluster: {type(problem).__name__}: {problem}")
            return
        wrong = next((c for c in made if not isinstance(c, Candidate) or c.strategy != strategy.name), None)
        if wrong is not None:
            plugins.leave_out(plugin, f"it yields something that is no candidate of {strategy.name}")
            return
        yield from made

    return candidates
