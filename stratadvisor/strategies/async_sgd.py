"""Asynchronous SGD: workers push gradients to a server whenever they have one, delays compensated (arXiv:1609.08326).

Nobody waits, so throughput is the sum of the workers' speeds. The price is stale gradients: with n workers always busy
a gradient is n - 1 updates old on average, whatever the speeds (Little's law), and the slowest worker's is older still.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from stratadvisor.costs.convergence import extra_steps_fraction
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.base import Strategy
from stratadvisor.strategies.common import explore, with_checkpointing
from stratadvisor.strategies.local import exact_only, whole_replicas
from stratadvisor.strategies.selections import spanning
from stratadvisor.strategies.site import layout_for, sharing_site
from stratadvisor.strategies.uneven import sequences_per_second

DELAY_COMPENSATION = 2.0
"""lambda_0 of DC-ASGD-a (adaptive), arXiv:1609.08326."""


def candidates(cluster: Cluster, workload: Workload) -> Iterator[Candidate]:
    """Yield one worker on each device, pushing gradients of equal batches."""
    if exact_only(workload) or not whole_replicas(cluster, workload):
        return
    for selection in spanning(cluster):
        found = sharing_site("async_sgd", selection, workload)
        if found is None or found[0].cluster.num_devices < 2:
            continue
        at, batch = found
        workers = at.cluster.num_devices
        layout = layout_for(at, "async", replicate=workers)
        speeds = sequences_per_second(at, layout, batch * workers)
        bound = math.ceil((workers - 1) * max(speeds) / min(speeds))
        allowed = workload.max_staleness_steps
        if workers - 1 > allowed:
            problem = f"gradients of {workers} workers are {workers - 1} updates old on average, {allowed} are allowed"
            at = replace(at, problem=problem)
        bound = min(bound, max(allowed, workers - 1))
        extra = extra_steps_fraction("asynchronous", sync_interval_steps=1, staleness=workers - 1, num_workers=workers)
        yield from explore(
            at,
            with_checkpointing(at, layout),
            batch,
            extra_steps=extra,
            settings={
                "staleness_bound": bound,
                "delay_compensation": DELAY_COMPENSATION,
                "delay_compensation_adaptive": True,
                "sync_warmup_fraction": 0.05,
                "sync_finish_fraction": 0.05,
            },
            notes=(f"gradients are at most {bound} updates old; a worker ahead of that waits",),
        )


ASYNC_SGD = Strategy(
    name="async_sgd",
    title="asynchronous SGD with delay compensation",
    family="asynchronous",
    target="async",
    candidates=candidates,
)
