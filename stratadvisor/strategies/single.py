"""One device, the simplest thing that can work; also the yardstick for all others."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.selections import single_devices
from stratadvisor.strategies.site import layout_for, sharing_site


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield training on one device of each class."""
    for selection in single_devices(cluster):
        found = sharing_site("single", selection, workload)
        if found is not None:
            at, batch = found
            yield from explore(at, with_checkpointing(at, layout_for(at, "torch")), batch)


SINGLE = Strategy(name="single", title="one device", family="single", target="torchrun", candidates=candidates)
