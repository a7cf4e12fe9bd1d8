"""Sharded inside a group of devices, replicated across groups: gathers stay on the fast links (torch fully_shard, 2-D).

Gradients are reduce-scattered inside the group in every micro-batch and averaged across groups once per step, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.selections import Selection, selections
from stratadvisor.strategies.site import layout_for, shared_batch, sharing_site, site
from stratadvisor.strategies.uneven import explore_lockstep, wants_unequal_shares

MAX_GROUP_SIZES = 4


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield groups of one node, two nodes, four ... on selections of several alike-sized nodes."""
    if workload.method != "full":
        return
    for selection in selections(cluster):
        found = sharing_site("hsdp", selection, workload)
        if found is not None:
            at, batch = found
            for shard in group_sizes(Selection(name=at.label, cluster=at.cluster)):
                replicas = at.cluster.num_devices // shard
                layout = layout_for(at, "fsdp2", sharding="parameters", shard=shard, replicate=replicas)
                yield from explore(at, with_checkpointing(at, layout), batch, notes=(_note(shard),))
        if not selection.uniform:
            at = site("hsdp", selection, workload)
            total = shared_batch(workload, at.cluster.num_devices)
            for shard in group_sizes(selection)[:1]:
                replicas = at.cluster.num_devices // shard
                layout = layout_for(at, "fsdp2", sharding="parameters", shard=shard, replicate=replicas)
                if wants_unequal_shares(at, layout, total):
                    yield from explore_lockstep(at, with_checkpointing(at, layout), total, notes=(_note(shard),))


def group_sizes(selection: Selection) -> list[int]:
    """Return shard degrees: one node's devices times powers of two that divide the nodes; none where nodes differ."""
    per_node = {c.devices_per_node for c in selection.cluster.classes}
    nodes = selection.cluster.num_nodes
    if len(per_node) != 1 or nodes < 2:
        return []
    size = per_node.pop()
    found: list[int] = []
    together = 1
    while together < nodes and nodes % together == 0 and len(found) < MAX_GROUP_SIZES:
        if size * together > 1:
            found.append(size * together)
        together *= 2
    return found


def _note(shard: int) -> str:
    return f"parameters are sharded over groups of {shard} devices"


HSDP = Strategy(
    name="hsdp",
    title="sharded inside a node, replicated across",
    family="synchronous",
    target="torchrun",
    candidates=candidates,
)
