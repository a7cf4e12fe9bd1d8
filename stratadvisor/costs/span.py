"""Width of the 90 % band of a step time, from what the estimate rests on."""

from __future__ import annotations

from stratadvisor.costs import constants as fitted
from stratadvisor.schema.cluster import Cluster

_COMPUTE_WIDTH = {
    "calibrated": fitted.SPAN_CALIBRATED,
    "measured": fitted.SPAN_MEASURED,
    "catalog": fitted.SPAN_CATALOG,
    "assumed": fitted.SPAN_ASSUMED,
}


def relative_width(basis: str, communication_share: float, *, assumed: bool, cluster: Cluster) -> float:
    """Return the relative half-width: of computation and of communication, each by its basis, weighted by their shares.

    Args:
        basis: calibrated, measured, catalog or assumed: what the product rate rests on.
        communication_share: exposed communication over the step.
        assumed: whether a bandwidth is a guess.
        cluster: tells measured sweeps from declared rates.

    """
    compute = _COMPUTE_WIDTH[basis]
    if basis == "measured" and cluster.backend == "nccl":  # a GPU's measured rate is no less certain than the catalog's
        compute = min(compute, fitted.SPAN_CATALOG)
    if basis == "calibrated":
        return compute
    measured = bool(cluster.intra_node_sweep or cluster.inter_node_sweep)
    network = fitted.SPAN_ASSUMED * 1.5 if assumed else fitted.SPAN_MEASURED if measured else fitted.SPAN_ASSUMED
    share = min(1.0, max(0.0, communication_share))
    return (1 - share) * compute + share * max(network, compute)
