"""Every configuration worth comparing, of every strategy, costed once."""

from __future__ import annotations

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.federated import stays_apart


def enumerate_candidates(
    cluster: Cluster, workload: Workload, strategies: tuple[str, ...] = tuple(STRATEGIES)
) -> tuple[Candidate, ...]:
    """Return candidates that fit and, with the number that kills them, those that do not.

    Exhaustive over selections of devices, micro-batches, accumulation, checkpointing, sharding degrees, offload and
    exchange intervals; all of these are few, however many devices there are.
    """
    if stays_apart(cluster, workload):  # every other way would carry data between nodes
        strategies = tuple(name for name in strategies if STRATEGIES[name].family == "federated")
    return tuple(c for name in strategies for c in STRATEGIES[name].candidates(cluster, workload))
