"""Which nodes measure the link between them, in which round: in a round every node meets at most one other.

A few nodes meet all others (the circle method of round-robin tournaments: n - 1 rounds for an even n, n for an odd
one). Many nodes are split into groups of neighbours: inside a group all meet; groups meet those whose number differs
in one bit, which takes log2 of their count; and random matchings over all nodes cross what the first two leave out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Pair = tuple[int, int]
Kind = Literal["all", "group", "across", "sampled", "again", "witness"]

TOURNAMENT_NODES = 16
"""Up to so many nodes every pair is measured."""
GROUP_NODES = 8
"""Neighbours in rank order that often share a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Pairs that measure at the same time."""

    kind: Kind
    pairs: tuple[Pair, ...]


def tournament(players: Sequence[int]) -> list[tuple[Pair, ...]]:
    """Return rounds in which everybody meets everybody once; with an odd count one sits out in every round."""
    circle: list[int | None] = [*players]
    if len(circle) % 2:
        circle.append(None)
    found: list[tuple[Pair, ...]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append(tuple((a, b) for a, b in met if a is not None and b is not None))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def split(players: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the players in order, in groups of at most ``GROUP_NODES`` whose sizes differ by one at most."""
    count = math.ceil(len(players) / GROUP_NODES)
    edges = [len(players) * g // count for g in range(count + 1)]
    return [tuple(players[begin:end]) for begin, end in pairwise(edges)]


def _across(groups: Sequence[tuple[int, ...]]) -> list[tuple[Pair, ...]]:
    """Return a round for every bit of a group's number: groups meet that differ in it, member by member."""
    found: list[tuple[Pair, ...]] = []
    for bit in range((len(groups) - 1).bit_length()):
        pairs: list[Pair] = []
        for number, group in enumerate(groups):
            other = number ^ (1 << bit)
            if number < other < len(groups):
                theirs = groups[other]
                turn = bit % len(theirs)  # not always the same member opposite
                pairs += zip(group, (*theirs[turn:], *theirs[:turn]), strict=False)
        found.append(tuple(pairs))
    return found


def _sampled(players: Sequence[int], seed: int) -> list[tuple[Pair, ...]]:
    """Return log2(n) random matchings of all players."""
    chance = random.Random(seed)  # noqa: S311 - nothing secret: the same plan for the same seed
    found: list[tuple[Pair, ...]] = []
    for _ in range((len(players) - 1).bit_length()):
        order = list(players)
        chance.shuffle(order)
        found.append(tuple(zip(order[::2], order[1::2], strict=False)))
    return found


def plan_rounds(players: Sequence[int], seed: int = 0) -> tuple[Round, ...]:
    """Return the rounds for the given nodes; the same arguments give the same plan.

    At most ``TOURNAMENT_NODES`` rounds for as many nodes or fewer, and otherwise at most
    ``GROUP_NODES + ceil(log2(groups)) + ceil(log2(nodes))``.
    """
    if len(players) < 2:
        return ()
    if len(players) <= TOURNAMENT_NODES:
        return tuple(Round(kind="all", pairs=pairs) for pairs in tournament(players))
    groups = split(players)
    inside = [tournament(group) for group in groups]
    rounds: list[Round] = []
    for number in range(max(len(each) for each in inside)):
        pairs = tuple(pair for each in inside if number < len(each) for pair in each[number])
        rounds.append(Round(kind="group", pairs=pairs))
    rounds += [Round(kind="across", pairs=pairs) for pairs in _across(groups)]
    rounds += [Round(kind="sampled", pairs=pairs) for pairs in _sampled(players, seed)]
    return tuple(rounds)


def disjoint(pairs: Sequence[Pair], most_rounds: int) -> list[tuple[Pair, ...]]:
    """Return the pairs in rounds without a node twice, first come first served; what does not fit is left out."""
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for pair in dict.fromkeys(pairs):
        place = next((n for n, taken in enumerate(busy) if not taken & set(pair)), len(busy))
        if place == most_rounds:
            continue
        if place == len(busy):
            found.append([])
            busy.append(set())
        found[place].append(pair)
        busy[place] |= set(pair)
    return [tuple(each) for each in found]
