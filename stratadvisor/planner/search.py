"""Every configuration worth comparing, of every strategy, costed once."""

from __future__ import annotations

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES


def enumerate_candidates(
    cluster: Cluster, workload: Workload, strategies: tuple[str, ...] = tuple(STRATEGIES)
) -> tuple[Candidate, ...]:
    """Return candidates that fit and, with the number that kills them, those that do not.

    Exhaustive over selections of devices, micro-batches, accumulation, checkpointing, sharding degrees, offload and
    exchange intervals; all of these are few, however many devices there are.
    """
    return tuple(c for name in strategies for c in STRATEGIES[name].candidates(cluster, workload))
