"""Federated averaging: data stays at its node, nodes train on their own and meet by weights (arXiv:1602.05629).

Asked for only (``Workload.data_stays``): where data may go anywhere, every other method sees all of it in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.local import explore_intervals, sites, whole_replicas
from stratadvisor.strategies.selections import Selection
from stratadvisor.strategies.site import Site, layout_for

USUAL_INTERVALS = (30, 100)
SHORTEST, LARGEST = 10, 500
"""As for DiLoCo, which is federated averaging with an outer optimizer (arXiv:2311.08105, section 2)."""
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 1.0, 0.0
"""The mean itself, as arXiv:1602.05629 has it."""
NOTE = (
    "an exchange is timed as an all-reduce among the nodes, a server's own link takes longer; how far the nodes' data"
    " differ is not known, and the more they do, the more steps it takes (arXiv:1806.00582)"
)


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield one client on every device, at several intervals: to leave a node out would leave its data out."""
    if not stays_apart(cluster, workload) or not whole_replicas(cluster, workload):
        return
    for at, batch, by_speed in sites("federated", Selection(name="", cluster=cluster), workload, _layout):
        for candidate in explore_intervals(
            at,
            _layout(at),
            batch,
            by_speed=by_speed,
            kind="local_sgd",
            num_workers=at.cluster.num_devices,
            usual=USUAL_INTERVALS,
            shortest=SHORTEST,
            largest=LARGEST,
            settings={"outer_learning_rate": OUTER_LEARNING_RATE, "outer_momentum": OUTER_MOMENTUM},
        ):
            if candidate.num_devices == cluster.num_devices:
                yield replace(candidate, notes=(*candidate.notes, NOTE))


def stays_apart(cluster: Cluster, workload: Workload) -> bool:
    """Whether data lies on several nodes and may not leave them."""
    return workload.data_stays and cluster.num_nodes > 1


def _layout(at: Site) -> Layout:
    return replace(layout_for(at, "local", replicate=at.cluster.num_devices), outer_optimizer=True)


FEDERATED = Strategy(
    name="federated",
    title="federated averaging, data stays at its node",
    family="federated",
    target="flower",
    candidates=candidates,
)
