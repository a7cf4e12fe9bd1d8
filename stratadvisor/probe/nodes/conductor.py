"""Conducts the probe of several nodes: gathers their profiles, plays the rounds, names who is lost and goes on.

It knows nothing of sockets: a channel carries messages, and the simulated network of the benchmarks is one, too. Every
wait has a deadline, so a dead, stopped or slow node costs one of them; it is then named and left out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import ValidationError

from stratadvisor.probe.nodes.diagnosis import doubtful, witnesses
from stratadvisor.probe.nodes.measured import Link, link_of
from stratadvisor.probe.nodes.messages import Event, Hello, Report, Swept
from stratadvisor.probe.nodes.rounds import Pair, Round, disjoint, plan_rounds
from stratadvisor.schema.profile import ClusterProfile

Note = Callable[[str, dict[str, Any]], None]
"""Told of everything worth keeping, as it comes: (kind, content)."""
MOST_CONFIRMING = 2
"""Rounds that look again at what is doubtful, and as many with witnesses."""


class Channel(Protocol):
    """How the conductor reaches the nodes."""

    def now(self) -> float:
        """Return seconds that only grow."""

    def send(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Hand a task to a node; never waits, never fails: a lost node becomes an event."""

    def receive(self, until: float) -> Event | None:
        """Return the next event; None when the time is up."""

    def silence(self, rank: int) -> str:
        """Return why a node that should have answered did not, as far as can be seen from here."""

    def address(self, rank: int) -> str:
        """Return where the other nodes reach it."""

    def ranks(self) -> Iterable[int]:
        """Return the nodes connected at this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines in seconds."""

    arrive: float
    """Until the first word of every node."""
    gather: float
    """From then on, until all have measured themselves."""
    round: float = 20.0
    """Of one round; a pair gives up at half of it."""
    transfer: float = 0.4
    """Length of one direction's transfer."""
    sweep: float = 60.0


@dataclass(kw_only=True)
class Found:
    """What came together."""

    labels: dict[int, str] = field(default_factory=dict)
    """What the user calls the nodes, where that is known before they come."""
    hellos: dict[int, Hello] = field(default_factory=dict)
    profiles: dict[int, ClusterProfile] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    """Node -> why it was left out."""
    failed: list[tuple[int, int, str]] = field(default_factory=list)
    """(node, partner, reason) of pairs that did not come to a result though neither is lost."""
    sweep: dict[str, Any] | None = None
    sweep_reason: str = ""
    planned: tuple[int, ...] = ()
    """The nodes that the rounds were planned for, in order: neighbours stand side by side."""
    num_rounds: int = 0
    num_planned_pairs: int = 0


class Conductor:
    """One probe of several nodes."""

    def __init__(
        self,
        channel: Channel,
        num_nodes: int,
        limits: Limits,
        *,
        note: Note | None = None,
        progress: Callable[[str, float | None], None] | None = None,
        seed: int = 0,
    ) -> None:
        self._channel = channel
        self._num_nodes = num_nodes
        self._limits = limits
        self._note = note or (lambda kind, content: None)
        self._progress = progress or (lambda text, share: None)
        self._seed = seed
        self._accused: dict[int, list[tuple[int, str]]] = {}
        self.found = Found()

    def run(self, *, sweep: bool = True) -> Found:
        """Gather, play all rounds, look again at what is doubtful, sweep, and dismiss the nodes."""
        try:
            self.gather()
            self.found.planned = tuple(self._present())
            self.play(plan_rounds(self.found.planned, self._seed))
            self.look_again()
            if sweep:
                self.sweep()
        finally:
            for rank in self._present():
                self._channel.send(rank, "end", {})
        return self.found

    def _present(self) -> list[int]:
        return sorted(rank for rank in self.found.profiles if rank not in self.found.lost)

    def _lose(self, rank: int, reason: str) -> None:
        if rank in self.found.lost:
            return
        self.found.lost[rank] = reason
        self._note("lost", {"rank": rank, "reason": reason})
        self._channel.send(rank, "end", {"reason": f"this node was left out: {reason}"})

    def gather(self) -> None:
        """Wait until every node has handed over its own profile, or is lost."""
        begin = self._channel.now()
        arrive = begin + self._limits.arrive
        end = begin + self._limits.arrive + self._limits.gather
        absent = set(range(self._num_nodes))
        missing = set(absent)
        while missing:
            event = self._channel.receive(arrive if absent else end)
            if event is not None:
                self._take(event, "while it measured itself")
                done = event.rank in self.found.profiles or event.rank in self.found.lost
                absent -= {event.rank} if done or event.kind == "hello" else set()
                missing -= {event.rank} if done else set()
                continue
            for rank in sorted(absent or missing):
                self._lose(
                    rank,
                    f"it did not come within {self._limits.arrive:g} s"
                    if absent
                    else f"while it measured itself: {self._channel.silence(rank)}",
                )
                missing.discard(rank)
            absent = set()

    def _take(self, event: Event, when: str) -> None:
        rank = event.rank
        if rank in self.found.lost:
            return
        if event.kind == "hello":
            self.found.hellos[rank] = event.value
            self._progress(f"node {rank} ({event.value.hostname}) came", None)
        elif event.kind == "document":
            self._take_document(rank, event.value)
        elif event.kind in ("lost", "nonsense"):
            self._lose(rank, f"{when}: {event.value}")

    def _take_document(self, rank: int, text: str) -> None:
        try:
            profile = ClusterProfile.model_validate_json(text)
        except ValidationError:
            self._lose(rank, "what it sends as its profile is none of this version")
            return
        if len(profile.nodes) != 1:
            self._lose(rank, f"its profile describes {len(profile.nodes)} nodes")
            return
        self.found.profiles[rank] = profile
        self._note("node", {"rank": rank, "document": text})
        self._progress(f"node {rank} ({profile.nodes[0].hostname}) has measured itself", None)

    def play(self, rounds: Iterable[Round]) -> None:
        """Play rounds, leaving out who is lost."""
        planned = tuple(rounds)
        for number, each in enumerate(planned):
            self._progress(f"links between nodes, round {number + 1} of {len(planned)}", number / len(planned))
            pairs = [pair for pair in each.pairs if not set(pair) & set(self.found.lost)]
            if pairs:
                self._play(pairs, each.kind)

    def _play(self, pairs: list[Pair], kind: str) -> None:
        number = self.found.num_rounds
        self.found.num_rounds += 1
        self.found.num_planned_pairs += len(pairs)
        nonces = {pair: secrets.token_hex(8) for pair in pairs}
        for pair, nonce in nonces.items():
            self._send_pair(number, pair, nonce)
        waiting = {rank: pair for pair in pairs for rank in pair}
        reports: dict[int, Report] = {}
        until = self._channel.now() + self._limits.round
        while waiting:
            event = self._channel.receive(until)
            if event is None:
                break
            self._take(event, f"in round {number + 1}")
            if event.rank in self.found.lost:
                waiting.pop(event.rank, None)
            elif event.kind == "report" and event.rank in waiting and event.value.round == number:
                if event.value.nonce == nonces[waiting[event.rank]]:
                    reports[event.rank] = event.value
                    del waiting[event.rank]
                else:
                    self._lose(event.rank, "it answers for a pair that it does not belong to")
                    del waiting[event.rank]
        for rank in waiting:
            self._lose(rank, f"in round {number + 1}: {self._channel.silence(rank)}")
        for pair in pairs:
            self._keep(number, kind, pair, reports)

    def _send_pair(self, number: int, pair: Pair, nonce: str) -> None:
        a, b = pair
        common = {
            "round": number,
            "nonce": nonce,
            "seconds": self._limits.transfer,
            "limit": self._limits.round / 2,
        }
        self._channel.send(a, "listen", {**common, "partner": b})
        hello = self.found.hellos[a]
        self._channel.send(
            b, "connect", {**common, "partner": a, "address": self._channel.address(a), "port": hello.port}
        )

    def _keep(self, number: int, kind: str, pair: Pair, reports: dict[int, Report]) -> None:
        a, b = pair
        if a not in reports or b not in reports:
            return  # one of them is lost, and named
        if reports[a].status != "ok" or reports[b].status != "ok":
            failing = reports[b] if reports[b].status != "ok" else reports[a]
            self.found.failed.append((a, b, failing.reason))
            self._note("failed", {"a": a, "b": b, "reason": failing.reason})
            for rank, other in ((a, b), (b, a)):
                if reports[rank].cause in ("refused", "silent", "reset", "unreachable"):
                    self._accuse(other, rank, reports[rank].reason)
            return
        link = link_of(number, kind, pair, reports[a], reports[b])
        if link.contradiction:
            self.found.failed.append((a, b, link.contradiction))
            self._note("failed", {"a": a, "b": b, "reason": link.contradiction})
            self._accuse(a, b, link.contradiction)
            self._accuse(b, a, link.contradiction)
            return
        self.found.links.append(link)
        self._note("link", link.as_dict())

    def _accuse(self, rank: int, by: int, reason: str) -> None:
        """Leave out a node with which two others came to nothing while they got on with somebody else."""
        known = self._accused.setdefault(rank, [])
        known.append((by, reason))
        accusers = {who for who, _ in known}
        if len(accusers) < 2:
            return
        fine = {end for link in self.found.links for end in (link.a, link.b)}
        if rank not in fine and len(accusers & fine) >= 1:
            self._lose(rank, f"{len(accusers)} partners came to nothing with it: {reason}")

    def look_again(self) -> None:
        """Measure doubtful pairs once more, and their ends with nodes that are known to be good."""
        suspects = doubtful(self.found.links, self.found.failed, self.found.planned)
        again = [pair for pair in suspects if not set(pair) & set(self.found.lost)]
        self.play(Round(kind="again", pairs=pairs) for pairs in disjoint(again, MOST_CONFIRMING))
        helped = witnesses(self.found.links, suspects, self._present(), self._seed)
        self.play(Round(kind="witness", pairs=pairs) for pairs in disjoint(helped, MOST_CONFIRMING))

    def sweep(self) -> None:
        """Let all that are left time a collective; once more without those that got lost in it."""
        for _ in range(2):
            present = self._present()
            if len(present) < 2:
                self.found.sweep_reason = "no second node is left"
                return
            self._progress("collectives between nodes", None)
            before = len(self.found.lost)
            if self._sweep(present) or len(self.found.lost) == before:
                return

    def _sweep(self, present: list[int]) -> bool:
        first = present[0]
        opened = self._collect([first], "open", {first: {"limit": self._limits.sweep}}).get(first)
        if opened is None or opened.status != "ok":
            self.found.sweep_reason = opened.reason if opened else "the first node did not open a store"
            return False
        tasks: dict[int, dict[str, Any]] = {
            rank: {
                "position": position,
                "size": len(present),
                "address": self._channel.address(first),
                "port": opened.port,
                "limit": self._limits.sweep,
            }
            for position, rank in enumerate(present)
        }
        answers = self._collect(present, "sweep", tasks)
        bad = {rank: answer for rank, answer in answers.items() if answer.status != "ok"}
        if not bad and len(answers) == len(present) and answers[first].times is not None:
            self.found.sweep, self.found.sweep_reason = answers[first].times, ""
            self._note("sweep", {"times": self.found.sweep})
            return True
        self.found.sweep_reason = next((answer.reason for answer in bad.values()), "a node was lost in it")
        return False

    def _collect(self, ranks: list[int], kind: str, tasks: dict[int, dict[str, Any]]) -> dict[int, Swept]:
        waiting = set(ranks)
        answers: dict[int, Swept] = {}
        for rank in ranks:
            self._channel.send(rank, kind, tasks[rank])
        until = self._channel.now() + 2 * self._limits.sweep
        while waiting:
            event = self._channel.receive(until)
            if event is None:
                break
            self._take(event, "in the collective")
            if event.rank in self.found.lost:
                waiting.discard(event.rank)
            elif event.kind == "swept" and event.rank in waiting:
                answers[event.rank] = event.value
                waiting.discard(event.rank)
        for rank in waiting:
            self._lose(rank, f"in the collective: {self._channel.silence(rank)}")
        return answers
