"""The link between two nodes as both ends measured it, and whether their stories fit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from stratadvisor.probe.nodes.messages import Flow, Report
from stratadvisor.probe.nodes.rounds import Pair

_MORE_RECEIVED = 1.01
"""Nobody receives more than was sent; the rest is for what a resent segment may count twice."""
_RATE_RATIO = 2.0
"""Both ends time the same bytes. Buffers, and a machine that others use, make them differ by less than this."""
_SLACK_BYTES, _SLACK_SECONDS = 32 * 1024 * 1024, 0.25
"""What may lie in buffers, and what a busy machine may add, without anybody lying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What ``a`` and ``b`` give each other; rates in bytes per second, each as the receiving end timed it."""

    round: int
    kind: str
    a: int
    b: int
    forward: float
    """From a to b."""
    backward: float
    latency_seconds: float
    """Half of the shortest round trip."""
    points: tuple[tuple[int, float], ...] = ()
    """(message bytes, seconds one way)."""
    interfaces: tuple[str, str] = ("", "")
    """Of a and of b: the ones whose counters moved."""
    stated: tuple[float | None, float | None] = (None, None)
    """What the drivers of these interfaces state, bytes per second."""
    contradiction: str = ""
    """Why the two reports cannot both be true."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for the journal."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["kind_of_round"] = found.pop("kind")
        return found

    @property
    def ends(self) -> Pair:
        """The two nodes."""
        return (self.a, self.b)


def _contradiction(sender: int, receiver: int, sent: Flow, received: Flow) -> str:
    if received.total_bytes > sent.total_bytes * _MORE_RECEIVED:
        return (
            f"node {receiver} says it received {received.total_bytes} B from node {sender},"
            f" which says it sent {sent.total_bytes} B"
        )
    if received.steady_bytes_per_second <= 0 or received.seconds <= 0:
        return f"node {receiver} says that nothing came from node {sender}, which sent {sent.total_bytes} B"
    most = (sent.total_bytes + _SLACK_BYTES) / max(sent.seconds - _SLACK_SECONDS, sent.seconds / 4, 1e-3)
    if received.steady_bytes_per_second > _RATE_RATIO * most:
        return (
            f"node {receiver} says it receives {received.steady_bytes_per_second:.3g} B/s from node {sender},"
            f" which sent {sent.total_bytes} B in {sent.seconds:.3g} s"
        )
    return ""


def link_of(number: int, kind: str, pair: Pair, first: Report, second: Report) -> Link:
    """Return the link from the reports of both ends."""
    a, b = pair
    timed = second if second.round_trip_seconds > 0 else first
    return Link(
        round=number,
        kind=kind,
        a=a,
        b=b,
        forward=second.received.steady_bytes_per_second,
        backward=first.received.steady_bytes_per_second,
        latency_seconds=timed.round_trip_seconds / 2,
        points=tuple((point.message_bytes, point.seconds) for point in timed.points),
        interfaces=(first.interface, second.interface),
        stated=(first.interface_bytes_per_second, second.interface_bytes_per_second),
        contradiction=_contradiction(a, b, first.sent, second.received)
        or _contradiction(b, a, second.sent, first.received),
    )
