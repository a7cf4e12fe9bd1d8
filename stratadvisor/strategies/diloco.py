"""DiLoCo: every replica trains alone for H steps, then an outer Nesterov step averages them (arXiv:2311.08105)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.local import (
    FEWEST_OUTER_STEPS,
    exact_only,
    explore_intervals,
    replicas_layout,
    sites,
    whole_replicas,
)
from stratadvisor.strategies.selections import spanning
from stratadvisor.strategies.site import Site

USUAL_INTERVALS = (30, 100)
"""Published runs lie between 30 and 500 (arXiv:2311.08105, arXiv:2412.01152)."""
SHORTEST, LARGEST = 10, 500
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Outer optimizer of arXiv:2311.08105: SGD with Nesterov momentum."""

LONGEST_DELAY = 5
"""Steps beside which an exchange may run (as in streaming DiLoCo, arXiv:2501.18512); the number is our bound."""


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield DiLoCo over all devices and over parts of the cluster, at several intervals."""
    if exact_only(workload) or not whole_replicas(cluster, workload):
        return
    for selection in spanning(cluster):
        for at, batch, by_speed in sites("diloco", selection, workload, _layout):
            if at.cluster.num_devices < 2:
                continue
            layout = _layout(at)
            yield from explore_intervals(
                at,
                layout,
                batch,
                by_speed=by_speed,
                kind="local_sgd",
                num_workers=layout.data_parallel_replicate_degree,
                usual=USUAL_INTERVALS,
                shortest=SHORTEST,
                largest=LARGEST,
                settings={
                    "outer_learning_rate": OUTER_LEARNING_RATE,
                    "outer_momentum": OUTER_MOMENTUM,
                },
                longest_delay=LONGEST_DELAY,
                fewest_exchanges=FEWEST_OUTER_STEPS,
            )


def _layout(at: Site) -> Layout:
    return replace(replicas_layout(at), outer_optimizer=True)


DILOCO = Strategy(
    name="diloco",
    title="local steps with periodic outer steps (DiLoCo)",
    family="local_sgd",
    target="async",
    candidates=candidates,
)
