"""Parameters, gradients and optimizer states divided among all devices (torch fully_shard, the successor of FSDP)."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.selections import selections
from stratadvisor.strategies.site import layout_for, shared_batch, sharing_site, site
from stratadvisor.strategies.uneven import explore_lockstep, wants_unequal_shares


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield equal shares, and shares by speed where classes differ; shards are equal, so the smallest card limits."""
    if workload.method == "qlora":
        return  # four-bit weights are not divided: each device holds them whole
    for selection in selections(cluster):
        found = sharing_site("fsdp2", selection, workload)
        if found is not None and found[0].cluster.num_devices > 1:
            at, batch = found
            layout = layout_for(at, "fsdp2", sharding="parameters", shard=at.cluster.num_devices)
            yield from explore(at, with_checkpointing(at, layout), batch)
        if not selection.uniform:
            at = site("fsdp2", selection, workload)
            total = shared_batch(workload, at.cluster.num_devices)
            layout = layout_for(at, "fsdp2", sharding="parameters", shard=at.cluster.num_devices)
            if wants_unequal_shares(at, layout, total):
                yield from explore_lockstep(at, with_checkpointing(at, layout), total)


FSDP2 = Strategy(
    name="fsdp2", title="fully sharded data parallel", family="synchronous", target="torchrun", candidates=candidates
)
