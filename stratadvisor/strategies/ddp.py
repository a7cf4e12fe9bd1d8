"""A replica on every device, gradients averaged in every step (torch DistributedDataParallel)."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.selections import selections
from stratadvisor.strategies.site import layout_for, sharing_site


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield equal shares on every selection of two devices or more."""
    for selection in selections(cluster):
        found = sharing_site("ddp", selection, workload)
        if found is None or found[0].cluster.num_devices < 2:
            continue
        at, batch = found
        layout = layout_for(at, "ddp", replicate=at.cluster.num_devices)
        yield from explore(at, with_checkpointing(at, layout), batch)


DDP = Strategy(name="ddp", title="data parallel", family="synchronous", target="torchrun", candidates=candidates)
