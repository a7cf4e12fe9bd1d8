"""What the devices of one node class do in a step, and how a layout's ranks lie on the nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratadvisor.costs.collectives import Group
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWork:
    """Share of one node class."""

    node_class: NodeClass
    micro_batch_size: int
    gradient_accumulation_steps: int
    batch_per_device: int
    """Sequences per optimizer step on one device; at most micro_batch_size * gradient_accumulation_steps."""

    @property
    def micro_batches(self) -> float:
        """Micro-batches per step; the last one may be a part."""
        return self.batch_per_device / self.micro_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Groups of ranks: tensor parallelism inside the node first, then context, then data, pipeline outermost."""

    data: Group
    shard: Group
    replicate: Group
    tensor: Group
    context: Group
    stages_cross_nodes: bool
    ranks_per_node: int
    num_ranks: int


def _spread(size: int, slots_per_node: int, groups_per_node: int) -> Group:
    ranks = max(1, min(size, slots_per_node))
    nodes = math.ceil(size / ranks)
    return Group(num_nodes=nodes, ranks_per_node=ranks, groups_per_node=groups_per_node if nodes > 1 else 1)


def place(layout: Layout, work: tuple[ClassWork, ...]) -> Placement:
    """Return where the ranks of ``layout`` lie when they fill the nodes of ``work`` in order."""
    per_node = max(w.node_class.devices_per_node for w in work)
    world = layout.world_size
    per_node = min(per_node, world)
    inner = layout.tensor_parallel_degree * layout.context_parallel_degree
    free = max(1, per_node // inner)  # data-parallel ranks that fit in a node
    sharing = min(inner, per_node)
    shard = layout.data_parallel_shard_degree
    shard_here = min(shard, free)
    stage = inner * layout.data_parallel_degree
    return Placement(
        data=_spread(layout.data_parallel_degree, free, sharing),
        shard=_spread(shard, free, sharing),
        replicate=_spread(layout.data_parallel_replicate_degree, max(1, free // shard_here), sharing * shard_here),
        tensor=_spread(layout.tensor_parallel_degree, per_node, 1),
        context=_spread(
            layout.context_parallel_degree,
            max(1, per_node // layout.tensor_parallel_degree),
            min(layout.tensor_parallel_degree, per_node),
        ),
        stages_cross_nodes=stage * layout.pipeline_parallel_degree > per_node and world > per_node,
        ranks_per_node=per_node,
        num_ranks=world,
    )
