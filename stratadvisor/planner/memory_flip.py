"""How much memory of a device would let a simpler strategy win: found by planning with that much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stratadvisor.planner import ranking
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.plan import Flip
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.selections import part_used
from stratadvisor.strategies.worth import SIMPLICITY_GAIN
from stratadvisor.units import format_bytes

MOST_MEMORY = 4.0
"""More than this many times the present memory is no hint worth giving: there is no such device."""
REFINEMENTS = 6
"""The threshold is then within 4 ** (1 / 2 ** 6), about 2 %."""
_WHOLE_LAYERS = ("single", "ddp", "fsdp2")
SIMPLER = {1: ("single", "ddp"), 2: _WHOLE_LAYERS, 3: _WHOLE_LAYERS, 5: _WHOLE_LAYERS}
"""Complexity of the choice -> strategies that more memory might bring back."""


def memory_flip(
    chosen: Candidate, cluster: Cluster, workload: Workload, keeps: Callable[[Candidate], bool]
) -> Flip | None:
    """Return the memory of the choice's devices from which a simpler strategy on them would be chosen.

    None for a choice that is simple already or not exact, for devices of several classes, and where it would take more
    memory than any such device has.
    """
    level = ranking.complexity(chosen)
    part = part_used(cluster, chosen.shares)
    device = part.classes[0].device
    available = device.usable_memory_bytes
    if level not in SIMPLER or len(part.classes) > 1 or available is None or workload.method == "qlora":
        return None

    def with_memory(memory: float) -> Cluster:
        roomy = replace(device, memory_total_bytes=memory, memory_free_bytes=memory)
        return replace(part, classes=(replace(part.classes[0], device=roomy),))

    most = with_memory(MOST_MEMORY * available)
    # the choice's own strategy gains from more memory as well
    names = dict.fromkeys((*SIMPLER[level], chosen.strategy))
    tried = [c for name in names for c in STRATEGIES[name].candidates(most, workload) if keeps(c)]

    def winner(memory: float) -> Candidate:
        fitting = [c for c in tried if c.feasible and c.memory.peak_bytes.high <= memory]
        return ranking.best([*fitting, chosen], with_memory(memory), workload.objective) or chosen

    low, high = available, MOST_MEMORY * available
    then = winner(high)
    if ranking.complexity(then) >= level:
        return None
    for _ in range(REFINEMENTS):
        middle = (low * high) ** 0.5
        found = winner(middle)
        if ranking.complexity(found) >= level:
            low = middle
        else:
            high, then = middle, found
    what = "free memory" if device.memory_free_bytes is not None else "memory"
    return Flip(
        fact=f"{what} of {device.name}",
        now=format_bytes(available),
        threshold=f">= {format_bytes(high)}",
        then=then.strategy,
    )


def host_flip(
    chosen: Candidate, candidates: tuple[Candidate, ...], cluster: Cluster, workload: Workload
) -> Flip | None:
    """Return how much host memory, of hosts where nobody states it, would let offload win by what it has to gain."""
    now = ranking.value(chosen, cluster, workload.objective)
    hosts = {c.name: c.host_memory_bytes for c in cluster.classes}
    able = [
        c
        for c in candidates
        if c.feasible and ranking.offloads(c) and len(c.shares) == 1 and hosts[c.shares[0].node_class] is None
    ]
    best = ranking.best(able, cluster, workload.objective)
    gain = 1 - SIMPLICITY_GAIN
    if best is None or ranking.offloads(chosen) or ranking.value(best, cluster, workload.objective) >= gain * now:
        return None
    share = best.shares[0]
    needed = share.memory.host_bytes_per_rank * share.devices_per_node
    return Flip(
        fact=f"host memory of a node of {share.node_class}",
        now="unknown",
        threshold=f">= {format_bytes(needed)}",
        then=best.strategy,
    )
