"""Data parallel with shares by speed: fast and slow devices finish together, and the gradient stays exact.

Shares b_i = v_i (T - o_i) minimise the slowest device's time; LB-BSP (SoCC 2020) adapts them during the run.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import with_checkpointing
from stratadvisor.strategies.selections import selections
from stratadvisor.strategies.site import layout_for, shared_batch, site
from stratadvisor.strategies.uneven import explore_replicas, wants_unequal_shares


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield shares by speed on every selection whose classes differ in speed."""
    for selection in selections(cluster):
        if selection.uniform:
            continue
        at = site("uneven_ddp", selection, workload)
        batch = shared_batch(workload, at.cluster.num_devices)
        layout = layout_for(at, "ddp", replicate=at.cluster.num_devices)
        if wants_unequal_shares(at, layout, batch):
            yield from explore_replicas(at, with_checkpointing(at, layout), batch)


UNEVEN_DDP = Strategy(
    name="uneven_ddp",
    title="data parallel with shares by speed",
    family="uneven_synchronous",
    target="torchrun",
    candidates=candidates,
)
