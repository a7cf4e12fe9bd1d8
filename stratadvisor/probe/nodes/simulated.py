"""A simulated network that the conductor plays on: discrete events, virtual time, injected faults, everything counted.

For the tests and ``benchmarks/round_plan.py``: the planner, the conductor, the messages and the merge are the real
ones; only the wire is not.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stratadvisor.probe.nodes.messages import Event, Hello, event_of, line_of
from stratadvisor.probe.nodes.rounds import Pair, split

_LATENCY_SECONDS = 30e-6
_MESSAGE_SECONDS = 2e-6
"""What the conductor needs for one message."""
_STOPPED = "it has stopped: no sign of life, though its host answers"


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is wrong with the network."""

    dead_at: Mapping[int, float] = field(default_factory=dict)
    """Node -> time from which its host refuses connections."""
    frozen_at: Mapping[int, float] = field(default_factory=dict)
    """Node -> time from which it says nothing, though its connections stay open."""
    slow_senders: Mapping[int, float] = field(default_factory=dict)
    """Node -> share of the usual rate at which it sends."""
    slow_receivers: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[Pair, float] = field(default_factory=dict)
    """(from, to) -> share."""
    slow_ways_out: Mapping[int, float] = field(default_factory=dict)
    """Number of a group of neighbours -> share for what leaves or enters it."""
    liars: frozenset[int] = frozenset()
    """Nodes that say they received ten times what was sent."""


class SimulatedNetwork:
    """A channel to ``num_nodes`` nodes that do not exist."""

    def __init__(
        self,
        num_nodes: int,
        *,
        document: str,
        faults: Faults | None = None,
        rate: float = 1.25e9,
        jitter: float = 0.03,
        own_probe_seconds: float = 40.0,
        silence_seconds: float = 15.0,
        seed: int = 1,
    ) -> None:
        self._num_nodes = num_nodes
        self._faults = faults or Faults()
        self._rate, self._jitter, self._silence = rate, jitter, silence_seconds
        self._chance = random.Random(seed)  # noqa: S311 - nothing secret
        self._time = 0.0
        self._order = itertools.count()
        self._events: list[tuple[float, int, Event]] = []
        self._waiting: dict[str, tuple[int, dict[str, Any]]] = {}
        self._sweeping: dict[int, dict[str, Any]] = {}
        self._group = {rank: g for g, ranks in enumerate(split(range(num_nodes))) for rank in ranks}
        self.messages = 0
        self.control_bytes = 0
        self.transferred_bytes = 0.0
        for rank in range(num_nodes):
            came = self._chance.uniform(0.5, 3.0)
            self._say(rank, came, "hello", Hello(rank=rank, hostname=f"node{rank:05d}", port=4000))
            text = document.replace("HOSTNAME", f"node{rank:05d}")
            self._say(rank, came + own_probe_seconds, "document", text)
        for rank, when in self._faults.dead_at.items():
            self._put(when, Event(rank, "lost", "its process has ended (its host closed the connection)"))
        for rank, when in self._faults.frozen_at.items():
            self._put(when + silence_seconds, Event(rank, "lost", _STOPPED))

    def _alive(self, rank: int, when: float) -> bool:
        endless = float("inf")
        return when < min(self._faults.dead_at.get(rank, endless), self._faults.frozen_at.get(rank, endless))

    def _put(self, when: float, event: Event) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _say(self, rank: int, when: float, kind: str, value: Any) -> None:
        """Queue a message as the line it would be, if the node lives to say it."""
        if not self._alive(rank, when):
            return
        if kind == "document":
            line, event = line_of(kind, {"text": value}), Event(rank, "document", value)
        elif kind == "hello":
            line, event = line_of(kind, value.model_dump()), Event(rank, "hello", value)
        else:
            line = line_of(kind, value)
            said = event_of(rank, line)
            assert said is not None
            event = said
        self.messages += 1
        self.control_bytes += len(line)
        self._put(when, event)

    def now(self) -> float:
        """Return the virtual time."""
        return self._time

    def ranks(self) -> Iterable[int]:
        """Return all nodes."""
        return range(self._num_nodes)

    def address(self, rank: int) -> str:
        """Return a made-up address."""
        return f"10.{rank >> 16}.{rank >> 8 & 255}.{rank & 255}"

    def silence(self, rank: int) -> str:
        """Return the cause that was injected."""
        if not self._alive(rank, self._time) and rank in self._faults.frozen_at:
            return _STOPPED
        return "it is alive but did not finish in time"

    def receive(self, until: float) -> Event | None:
        """Return the next event and move the time."""
        if not self._events or self._events[0][0] > until:
            self._time = max(self._time, until)
            return None
        when, _, event = heapq.heappop(self._events)
        self._time = max(self._time + _MESSAGE_SECONDS, when)
        return event

    def send(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Take a task and queue what comes of it."""
        self._time += _MESSAGE_SECONDS
        self.messages += 1
        self.control_bytes += len(line_of(kind, content))
        if kind in ("listen", "connect"):
            other = self._waiting.pop(content["nonce"], None)
            if other is None:
                self._waiting[content["nonce"]] = (rank, content)
            else:
                self._measure(other[0], rank, content)
        elif kind == "open":
            self._say(rank, self._time + 0.1, "swept", {"port": 4001})
        elif kind == "sweep":
            self._sweeping[rank] = content
            if len(self._sweeping) == content["size"]:
                self._sweep()

    def _share(self, source: int, target: int) -> float:
        faults = self._faults
        share = min(faults.slow_senders.get(source, 1.0), faults.slow_receivers.get(target, 1.0))
        share = min(share, faults.slow_links.get((source, target), 1.0))
        if self._group[source] != self._group[target]:
            share = min(share, *(faults.slow_ways_out.get(self._group[rank], 1.0) for rank in (source, target)))
        return share

    def _measure(self, a: int, b: int, content: dict[str, Any]) -> None:
        alive = {rank: self._alive(rank, self._time) for rank in (a, b)}
        common = {"round": content["round"], "nonce": content["nonce"]}
        if not all(alive.values()):
            for rank, other in ((a, b), (b, a)):
                dead = other in self._faults.dead_at
                cause = "refused" if dead else "silent"
                wait = 0.01 if dead else content["limit"]
                self._say(
                    rank,
                    self._time + wait,
                    "report",
                    {**common, "status": "failed", "cause": cause, "reason": f"node {other} {cause}"},
                )
            return
        seconds = content["seconds"]
        flow: dict[int, dict[str, Any]] = {a: {}, b: {}}
        for source, target in ((a, b), (b, a)):
            rate = self._rate * self._share(source, target) * self._chance.gauss(1.0, self._jitter)
            total = int(rate * seconds)
            self.transferred_bytes += total
            claimed = 10 if target in self._faults.liars else 1
            flow[source]["sent"] = {"total_bytes": total, "seconds": seconds}
            flow[target]["received"] = {
                "total_bytes": total * claimed,
                "seconds": seconds,
                "steady_bytes_per_second": rate * claimed,
            }
        done = self._time + 2 * seconds + 0.05
        self._say(a, done, "report", {**common, **flow[a], "interface": "eth0"})
        timed = {"round_trip_seconds": 2 * _LATENCY_SECONDS, "interface": "eth0"}
        self._say(b, done, "report", {**common, **flow[b], **timed})

    def _sweep(self) -> None:
        first = min(self._sweeping)
        slowest = self._rate * min([1.0, *self._faults.slow_senders.values(), *self._faults.slow_receivers.values()])
        size = len(self._sweeping)
        points = [
            (message, 2 * (size - 1) / size * message / slowest + 1e-4) for message in (1024, 2**20, 2**24, 2**26)
        ]
        times = {"backend": "nccl", "world_size": size, "points": points, "repetitions": [1] * len(points)}
        for rank in self._sweeping:
            self._say(
                rank, self._time + 5.0, "swept", {"times": json.loads(json.dumps(times))} if rank == first else {}
            )
        self._sweeping = {}
