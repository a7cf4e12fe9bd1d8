"""What is slow: a node's own connection, the link between two nodes, or what joins a group of nodes to the rest.

A node is held against the best it showed with any partner: what it can send and receive. A node whose best is far
below the others' has a slow connection (interface, cable, port). A link far below what both its ends can do is slow
itself. When nearly all links that leave a group are, while those inside it are not, it is the group's way out.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from stratadvisor.probe.nodes.measured import Link
from stratadvisor.probe.nodes.rounds import Pair, split

SLOW_SHARE = 0.6
"""Of what is usual; equal links repeat within 5 to 10 %, and a busy machine takes a quarter now and then."""
PROCESSOR_BYTES_PER_SECOND = 1.5e9
"""What one process moves over TCP even on a slow or busy processor: where links are faster, differences above it are
the processors', and nothing is called slow for them."""
ASYMMETRIC_SHARE = 0.6
"""The slower direction over the faster one."""
WAY_OUT_SHARE = 0.75
"""So many of the links that leave a group must be slow before the group's way out is blamed."""
MOST_SUSPECTS = 200
Direction = Literal["sends", "receives", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The best that a node showed, bytes per second."""

    sends: float
    receives: float
    num_partners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNode:
    """A node whose own connection is slow."""

    rank: int
    direction: Direction
    rate: float
    """Of the slow direction, the slower one of both."""
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLink:
    """A pair below what both its ends can do."""

    a: int
    b: int
    rate: float
    """Of the slow direction, from a to b."""
    usual: float
    both_ways: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWayOut:
    """A group of neighbours that is fast inside and slow towards all others."""

    ranks: tuple[int, ...]
    rate: float
    """Median of the links that leave it."""
    usual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything found slow."""

    reach: Mapping[int, Reach]
    usual: float
    """What half of the nodes or more can send and receive."""
    nodes: tuple[SlowNode, ...] = ()
    links: tuple[SlowLink, ...] = ()
    ways_out: tuple[SlowWayOut, ...] = ()


def rates(links: Iterable[Link]) -> dict[Pair, float]:
    """Return the rate of every direction (from, to) that was measured: the best of several times."""
    found: dict[Pair, float] = {}
    for link in links:
        way, back = (link.a, link.b), (link.b, link.a)
        if link.forward > found.get(way, 0.0):
            found[way] = link.forward
        if link.backward > found.get(back, 0.0):
            found[back] = link.backward
    return found


def reaches(by_way: Mapping[Pair, float]) -> dict[int, Reach]:
    """Return the best of every node."""
    sends: dict[int, float] = defaultdict(float)
    receives: dict[int, float] = defaultdict(float)
    partners: dict[int, int] = defaultdict(int)
    for (source, target), rate in by_way.items():
        sends[source] = max(sends[source], rate)
        receives[target] = max(receives[target], rate)
        partners[source] += 1
    return {rank: Reach(sends=sends[rank], receives=receives[rank], num_partners=partners[rank]) for rank in partners}


def diagnose(links: Sequence[Link], planned: Sequence[int] = ()) -> Diagnosis:
    """Return what is slow, each thing once: what a slow node or way out explains is no slow link as well.

    Args:
        links: as measured.
        planned: the nodes that the plan was made for, in its order: they say which are neighbours.

    """
    by_way = rates(links)
    reach = reaches(by_way)
    if not reach:
        return Diagnosis(reach={}, usual=0.0)
    usual = statistics.median_high([min(r.sends, r.receives) for r in reach.values()])
    nodes = tuple(_slow_node(rank, r, usual) for rank, r in sorted(reach.items()) if _is_slow(r, usual))
    nodes = nodes if len(reach) > 2 else ()  # of two nodes nobody can say whose fault it is
    slow = _slow_ways(by_way, reach)
    ways_out = _ways_out(by_way, slow, list(planned) or sorted(reach))
    explained = {rank for way_out in ways_out for rank in way_out.ranks}
    slow = {way: limit for way, limit in slow.items() if not explained & set(way) or _same_group(way, ways_out)}
    found: list[SlowLink] = []
    for (source, target), limit in sorted(slow.items()):
        back = (target, source) in slow
        if back and source > target:
            continue
        rate = min(by_way[source, target], by_way[target, source]) if back else by_way[source, target]
        found.append(SlowLink(a=source, b=target, rate=rate, usual=limit, both_ways=back))
    if len(reach) == 2:
        found = _one_pair(by_way)
    return Diagnosis(reach=reach, usual=usual, nodes=nodes, links=tuple(found), ways_out=ways_out)


def _floor(usual: float) -> float:
    return SLOW_SHARE * min(usual, PROCESSOR_BYTES_PER_SECOND)


def _is_slow(reach: Reach, usual: float) -> bool:
    return min(reach.sends, reach.receives) < _floor(usual)


def _slow_node(rank: int, reach: Reach, usual: float) -> SlowNode:
    sends, receives = reach.sends < _floor(usual), reach.receives < _floor(usual)
    direction: Direction = "both" if sends and receives else "sends" if sends else "receives"
    rate = min(reach.sends, reach.receives)
    return SlowNode(rank=rank, direction=direction, rate=rate, usual=usual)


def _slow_ways(by_way: Mapping[Pair, float], reach: Mapping[int, Reach]) -> dict[Pair, float]:
    """Return the directions below what their ends can do, with that amount."""
    found: dict[Pair, float] = {}
    for (source, target), rate in by_way.items():
        if rate < SLOW_SHARE * PROCESSOR_BYTES_PER_SECOND:  # no floor is above that
            able = min(reach[source].sends, reach[target].receives)
            if rate < _floor(able):
                found[source, target] = able
    return found


def _ways_out(by_way: Mapping[Pair, float], slow: Mapping[Pair, float], ranks: list[int]) -> tuple[SlowWayOut, ...]:
    groups = split(ranks)
    if len(groups) < 3:
        return ()  # of two groups nobody can say whose way out it is
    number = {rank: g for g, members in enumerate(groups) for rank in members}
    leaving: dict[int, list[Pair]] = defaultdict(list)
    for way in by_way:
        source, target = number.get(way[0]), number.get(way[1])
        if source != target and source is not None and target is not None:
            leaving[source].append(way)
            leaving[target].append(way)
    suspected = {
        group
        for group, ways in leaving.items()
        if len(groups[group]) > 1 and sum(way in slow for way in ways) >= WAY_OUT_SHARE * len(ways)
    }
    return tuple(
        SlowWayOut(
            ranks=groups[group],
            rate=statistics.median(by_way[way] for way in leaving[group]),
            usual=statistics.median(slow[way] for way in leaving[group] if way in slow),
        )
        for group in sorted(suspected)
    )


def _same_group(way: Pair, ways_out: Iterable[SlowWayOut]) -> bool:
    return any(set(way) <= set(way_out.ranks) for way_out in ways_out)


def _one_pair(by_way: Mapping[Pair, float]) -> list[SlowLink]:
    """Of two nodes only the directions can be compared."""
    (way, rate), (_, best) = sorted(by_way.items(), key=lambda item: item[1])[:: max(1, len(by_way) - 1)][:2]
    if rate < ASYMMETRIC_SHARE * min(best, PROCESSOR_BYTES_PER_SECOND):
        return [SlowLink(a=way[0], b=way[1], rate=rate, usual=best, both_ways=False)]
    return []


def doubtful(links: Sequence[Link], failed: Sequence[tuple[int, int, str]], planned: Sequence[int] = ()) -> list[Pair]:
    """Return the pairs worth a second look: slow ones, those that failed, and a slow node's best pair."""
    found = [(a, b) for a, b, _ in failed]
    diagnosis = diagnose(links, planned)
    found += [(link.a, link.b) for link in diagnosis.links]
    by_way = rates(links)
    for node in diagnosis.nodes:
        ways = [way for way in by_way if node.rank in way]
        found.append(max(ways, key=lambda way: by_way[way]))
    met = {frozenset(link.ends): link.ends for link in links}
    ordered = (met.get(frozenset(pair), pair) for pair in found)  # the listener stays the listener
    return list(dict.fromkeys(ordered))[:MOST_SUSPECTS]


def witnesses(links: Sequence[Link], suspects: Sequence[Pair], present: Sequence[int], seed: int) -> list[Pair]:
    """Return each suspect's ends with a good node that they have not met, where there is one."""
    involved = {rank for pair in suspects for rank in pair}
    met = {frozenset(link.ends) for link in links}
    good = [rank for rank in present if rank not in involved]
    random.Random(seed).shuffle(good)  # noqa: S311 - nothing secret
    found: list[Pair] = []
    for rank in dict.fromkeys(rank for pair in suspects for rank in pair):
        partner = next((g for g in good if frozenset((rank, g)) not in met), None)
        if partner is not None and rank in present:
            found.append((rank, partner))
            good.remove(partner)
    return found
