"""Exact averaging inside a node in every step, averaging of parameters across nodes every few steps.

The gain over plain data parallel is fewer exchanges over the slow links, not a cleverer all-reduce: a ring ordered by
topology already crosses each network card only once.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.local import (
    alike_nodes,
    exact_only,
    explore_intervals,
    replicas_layout,
    sites,
    whole_replicas,
)
from stratadvisor.strategies.selections import spanning

USUAL_INTERVALS = (4, 8)
SHORTEST, LARGEST = 2, 32
"""Plain averaging without an outer optimizer drifts further than DiLoCo; our bounds."""

LONGEST_DELAY = 2
"""Nodes apply the mean one or two steps late at most; our bound, as the drift grows with every step."""


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield averaging every few steps on selections of several nodes."""
    if exact_only(workload) or not whole_replicas(cluster, workload):
        return
    for selection in spanning(cluster):
        for at, batch, by_speed in sites("hierarchical", selection, workload, replicas_layout):
            if not alike_nodes(at.cluster):
                continue  # with one device a node nothing is exact: that is DiLoCo's plain cousin, and DiLoCo is better
            yield from explore_intervals(
                at,
                replicas_layout(at),
                batch,
                by_speed=by_speed,
                kind="hierarchical",
                num_workers=at.cluster.num_nodes,
                usual=USUAL_INTERVALS,
                shortest=SHORTEST,
                largest=LARGEST,
                settings={},
                longest_delay=LONGEST_DELAY,
            )


HIERARCHICAL = Strategy(
    name="hierarchical",
    title="exact inside a node, periodic averaging across",
    family="hierarchical",
    target="torchrun",
    candidates=candidates,
)
