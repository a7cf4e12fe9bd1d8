"""ZeRO with DeepSpeed: what is divided among all devices, by stage (Rajbhandari et al., arXiv:1910.02054)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout, Sharding
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.selections import Selection, selections
from stratadvisor.strategies.site import Site, layout_for, sharing_site

STAGES: tuple[Sharding, ...] = ("none", "optimizer", "gradients", "parameters")


def whole_nodes(cluster: Cluster) -> list[Selection]:
    """Return the selections that leave no device of a node idle; fewer nodes too, which a slow network may ask for."""
    whole = {c.name: c.devices_per_node for c in cluster.classes}
    return [s for s in selections(cluster) if all(whole[c.name] == c.devices_per_node for c in s.cluster.classes)]


def stage_candidates(name: str, stage: int) -> Callable[[Cluster, Workload], Iterator[Candidate]]:
    """Return the generator of candidates of one stage."""

    def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
        if workload.method == "qlora":
            return  # the four-bit base is replicated; dividing the adapters alone saves next to nothing
        for selection in whole_nodes(cluster):
            found = sharing_site(name, selection, workload)
            if found is None or found[0].cluster.num_devices < 2:
                continue  # at one device there is nothing to divide
            at, batch = found
            yield from explore(at, with_checkpointing(at, zero_layout(at, stage)), batch)

    return candidates


def zero_layout(at: Site, stage: int, **changes: Any) -> Layout:
    """Return the DeepSpeed layout of a stage over all devices of the site."""
    layout = layout_for(at, "deepspeed", sharding=STAGES[stage], shard=at.cluster.num_devices)
    return replace(layout, **changes)
