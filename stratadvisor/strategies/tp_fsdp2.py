"""Tensor parallelism inside a node, FSDP2 across (torch DTensor, 2-D mesh): ranks of a node share each layer.

A layer's parameters then cross the network in parts, a node needs fewer sequences to keep busy, and activations and
scores are divided as well. Whether the links inside the node are fast enough for it is left to the predicted time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.site import layout_for, sharing_site
from stratadvisor.strategies.zero import whole_nodes

DEGREES = (2, 4, 8)


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield every degree that divides the model and the nodes, on selections of whole nodes."""
    able = [degree for degree in DEGREES if divides(workload, degree)]
    for selection in whole_nodes(cluster) if able else ():
        per_node = math.gcd(*(c.devices_per_node for c in selection.cluster.classes))
        for degree in able:
            found = sharing_site("tp_fsdp2", selection, workload, together=degree) if per_node % degree == 0 else None
            if found is None:
                continue
            at, batch = found
            shard = at.cluster.num_devices // degree
            layout = layout_for(at, "fsdp2", sharding="parameters", shard=shard)
            yield from explore(at, with_checkpointing(at, replace(layout, tensor_parallel_degree=degree)), batch)


def divides(workload: Workload, degree: int) -> bool:
    """Whether the emitted program can divide every layer, the vocabulary and the sequence by ``degree``."""
    shape = workload.model
    if not shape.is_transformer or shape.num_experts or workload.method != "full":
        return False
    numbers = [
        shape.num_attention_heads,
        shape.num_key_value_heads,
        shape.ffn_hidden_size,
        shape.vocab_size,
        workload.sequence_length,
        shape.max_sequence_length if shape.learned_positions else 0,
    ]
    return all(number % degree == 0 for number in numbers)


TP_FSDP2 = Strategy(
    name="tp_fsdp2",
    title="tensor parallel inside a node, fully sharded across",
    family="synchronous",
    target="torchrun",
    candidates=candidates,
)
