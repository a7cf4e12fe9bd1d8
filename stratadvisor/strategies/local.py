"""Shared by strategies whose replicas meet every few steps only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stratadvisor.costs.convergence import extra_steps_fraction
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.common import explore, run_steps, timed, with_checkpointing
from stratadvisor.strategies.intervals import EXCHANGE_SHARE, intervals, solved_interval
from stratadvisor.strategies.selections import Selection
from stratadvisor.strategies.site import Site, layout_for, shared_batch, sharing_site, site
from stratadvisor.strategies.uneven import explore_replicas, wants_unequal_shares
from stratadvisor.units import format_seconds

_NEVER = 10**9
"""An interval at which exchanges cost nothing."""
FEWEST_EXCHANGES = 10
"""A run has at least so many exchanges, or it is not one training run but several."""
FEWEST_OUTER_STEPS = 30
"""The same where an outer optimizer with momentum needs exchanges to learn from: the fewest with a published result are
64,000 steps that meet every 2,000 (arXiv:2311.08105). Runs with ten took 1.3 to 2.3 times the steps of exact training
in the lab (docs/regret.md)."""


def sites(
    strategy: str, selection: Selection, workload: Workload, layout_of: Callable[[Site], Layout]
) -> Iterator[tuple[Site, int, bool]]:
    """Yield the site, its global batch, and whether shares go by speed (where classes differ) or are equal."""
    if not selection.uniform:
        at = site(strategy, selection, workload)
        batch = shared_batch(workload, at.cluster.num_devices)
        if wants_unequal_shares(at, layout_of(at), batch):
            yield at, batch, True
            return
    found = sharing_site(strategy, selection, workload)
    if found is not None:
        at, share = found
        yield at, share * at.cluster.num_devices, False


def alike_nodes(cluster: Cluster) -> bool:
    """Whether there are several nodes with equally many devices, more than one: a node can then be a replica."""
    per_node = {c.devices_per_node for c in cluster.classes}
    return cluster.num_nodes > 1 and len(per_node) == 1 and per_node.pop() > 1


def replicas_layout(at: Site) -> Layout:
    """Return replicas that are whole nodes, exact inside, where nodes are alike; else every device is one.

    Fewer replicas lose less, and links inside a node are fast.
    """
    replicas, inside = at.cluster.num_devices, 1
    if alike_nodes(at.cluster):
        replicas, inside = at.cluster.num_nodes, at.cluster.classes[0].devices_per_node
    return layout_for(at, "local", replicate=replicas, shard=inside)


def explore_intervals(
    at: Site,
    layout: Layout,
    batch: int,
    *,
    by_speed: bool,
    kind: str,
    num_workers: int,
    usual: tuple[int, ...],
    shortest: int,
    largest: int,
    settings: dict[str, str | int | float | bool],
    longest_delay: int = 0,
    fewest_exchanges: int = FEWEST_EXCHANGES,
) -> Iterator[Candidate]:
    """Yield variants at the solved and the usual intervals between exchanges, each applied at once or some steps late.

    A delay is tried where there is something to hide behind it.
    """

    def explored(base: tuple[Layout, ...], **options: Any) -> Iterator[Candidate]:
        if by_speed:
            return explore_replicas(at, base, batch, **options)
        return explore(at, base, batch // at.cluster.num_devices, **options)

    every_step = list(explored(with_checkpointing(at, layout)))
    probe = min(every_step, key=lambda c: (not c.feasible, c.time.step_seconds.likely), default=None)
    if probe is None:
        return
    if not probe.feasible:
        yield from every_step  # what is missing does not depend on the interval
        return
    alone = timed(
        replace(probe, layout=replace(probe.layout, sync_interval_steps=_NEVER)), at.cluster, at.workload
    ).time
    exchange = probe.time.communication_seconds - alone.communication_seconds
    longest = max(1, run_steps(at.workload, batch) // fewest_exchanges)
    if longest < shortest:
        return
    solved = solved_interval(exchange, alone.step_seconds.likely, low=shortest, high=largest)
    for interval in intervals(solved, usual, longest=longest):
        for delay in delays(exchange, alone.step_seconds.likely, interval, longest_delay):
            extra = extra_steps_fraction(
                kind, sync_interval_steps=interval, staleness=0, num_workers=num_workers, delay_steps=delay
            )
            note = f"replicas meet every {interval} steps"
            if delay:
                note += f"; what they send travels during the next {delay} and is applied then"
            elif interval == solved:
                note += (
                    f", which an exchange of {format_seconds(exchange)} makes {EXCHANGE_SHARE:.0%} of the time or less"
                )
            late = f", {delay} late" if delay else ""
            local = alone.step_seconds.likely + (0.0 if delay else exchange / interval)
            start = {"sync_warmup_fraction": lockstep_fraction(local, probe.time.step_seconds.likely)}
            for candidate in explored(
                with_checkpointing(at, replace(layout, sync_interval_steps=interval, exchange_delay_steps=delay)),
                extra_steps=extra,
                settings=settings | start | ({"delay_steps": delay} if delay else {}),
                notes=(note,),
            ):
                yield replace(candidate, variant=f"every {interval} steps{late}, {candidate.variant}")


LOCKSTEP_FRACTION, LOCKSTEP_SHARE = 0.05, 0.05
"""Share of the steps that replicas begin in lockstep, and the largest share of the time that these may add. DiLoCo
loses little without them (arXiv:2311.08105, on the number of pretraining steps), and each pays for a whole exchange,
which on a slow network takes as long as many steps."""


def lockstep_fraction(local_seconds: float, lockstep_seconds: float) -> float:
    """Return the share of a run's steps to begin in lockstep, from the times of a local step and of one in lockstep."""
    added = lockstep_seconds / local_seconds - 1
    if added * LOCKSTEP_FRACTION <= LOCKSTEP_SHARE:
        return LOCKSTEP_FRACTION
    return round(LOCKSTEP_SHARE / added, 4)


WORTH_HIDING = 0.01
"""Share of the time that exchanges take, from which on a delay is tried. Our choice."""


def delays(exchange_seconds: float, step_seconds: float, interval: int, longest: int) -> list[int]:
    """Return the delays in steps to try: none, and as many as hide the exchange, at most ``longest``."""
    if step_seconds <= 0 or exchange_seconds <= WORTH_HIDING * interval * step_seconds:
        return [0]
    return sorted({0, min(longest, interval - 1, math.ceil(exchange_seconds / step_seconds))})


TRIED_INTERVALS = {"hierarchical": (2, 4, 8, 16, 32), "diloco": (10, 30, 100, 250, 500)}
"""Where a candidate is moved to another network: intervals of which one is nearly right."""


def at_intervals(candidate: Candidate) -> list[Candidate]:
    """Return copies of a candidate that meet at other intervals; their times have yet to be costed."""
    found: list[Candidate] = []
    for interval in TRIED_INTERVALS.get(candidate.strategy, ()):
        if interval == candidate.layout.sync_interval_steps:
            continue
        kind = "hierarchical" if candidate.strategy == "hierarchical" else "local_sgd"
        workers = candidate.layout.data_parallel_replicate_degree
        penalties = [
            extra_steps_fraction(kind, sync_interval_steps=h, staleness=0, num_workers=workers)[0]
            for h in (candidate.layout.sync_interval_steps, interval)
        ]
        extra = (1 + candidate.extra_steps_fraction) * (1 + penalties[1]) / (1 + penalties[0]) - 1
        late = min(candidate.layout.exchange_delay_steps, interval - 1)
        layout = replace(candidate.layout, sync_interval_steps=interval, exchange_delay_steps=late)
        found.append(replace(candidate, layout=layout, extra_steps_fraction=extra))
    return found


def exact_only(workload: Workload) -> bool:
    """Whether the user forbids every method that is not exact."""
    return workload.max_staleness_steps == 0


def whole_replicas(cluster: Cluster, workload: Workload) -> bool:
    """Whether methods that need whole replicas on two devices or more, trained in full, have a meaning here."""
    return cluster.num_devices > 1 and workload.method == "full"
