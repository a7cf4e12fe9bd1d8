"""What a conductor and the nodes tell each other: one JSON object a line, read as data of a stranger, with bounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from stratadvisor.schema.base import Document, Many, NonNegative
from stratadvisor.schema.profile import MAX_COUNT

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Of one message; a profile of a node with eight devices takes about 40 kB."""
_MOST_BYTES, _MOST_SECONDS = 2**60, 1e6
Rank = Annotated[int, Field(ge=0, lt=MAX_COUNT)]
Text = Annotated[str, Field(max_length=300)]
Seconds = Annotated[float, Field(ge=0, le=_MOST_SECONDS)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Hello(Document):
    """A node says who it is, before it measures itself."""

    rank: Rank | None = None
    """None: the conductor gives out a number."""
    hostname: Annotated[str, Field(max_length=255)]
    address: Annotated[str, Field(max_length=64)] = ""
    """Where the others reach it; empty when only the conductor can tell."""
    port: Port = 0
    """Where it waits for its partners."""
    name_is_loopback: bool = False
    """Whether the host's own name leads to its loopback."""
    key: Annotated[str, Field(max_length=64)] = ""
    """Of the job: another job's nodes that lose their way are not let in."""


class Flow(Document):
    """One direction of a pair as one end saw it."""

    total_bytes: Annotated[int, Field(ge=0, le=_MOST_BYTES)] = 0
    seconds: Seconds = 0.0
    """From the first byte to the last."""
    steady_bytes_per_second: Annotated[float, Field(ge=0, le=1e15)] = 0.0
    """After the start was cut off; 0 on the sending side."""


class Point(Document):
    """A message of some size, there and acknowledged, less the time of an empty one."""

    message_bytes: Annotated[int, Field(ge=1, le=_MOST_BYTES)]
    seconds: Annotated[float, Field(gt=0, le=_MOST_SECONDS)]


class Report(Document):
    """What one end of a pair says about a round."""

    round: Annotated[int, Field(ge=0, le=10_000)]
    nonce: Annotated[str, Field(max_length=64)]
    status: Literal["ok", "failed"] = "ok"
    reason: Text = ""
    cause: Literal["", "refused", "unreachable", "silent", "reset", "stranger", "own"] = ""
    """What kept the pair from measuring, as this end saw it."""
    sent: Flow = Flow()
    received: Flow = Flow()
    round_trip_seconds: Annotated[float, Field(ge=0, le=_MOST_SECONDS)] = 0.0
    """0 on the end that did not time it."""
    points: Many[Point] = Field(default=(), max_length=32)
    """Both directions' mean; empty on the end that did not time it."""
    interface: Annotated[str, Field(max_length=64)] = ""
    """The one whose counters moved."""
    interface_bytes_per_second: NonNegative | None = None
    """What its driver states."""


class Swept(Document):
    """The end of a collective sweep on one node."""

    status: Literal["ok", "failed"] = "ok"
    reason: Text = ""
    port: Port = 0
    """Where the store of the sweep listens; of the first node."""
    times: dict[str, Any] | None = None
    """Fields of ``found.SweepTimes``; of the first node."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something arrived from a node, or the node is gone."""

    rank: int
    kind: Literal["hello", "document", "report", "swept", "lost", "nonsense"]
    value: Any
    """Hello, text, Report, Swept, or the reason as a text."""


def line_of(kind: str, content: dict[str, Any]) -> bytes:
    """Return a message as it goes over the wire."""
    return json.dumps({"kind": kind, **content}, separators=(",", ":")).encode() + b"\n"


def event_of(rank: int, line: bytes) -> Event | None:
    """Return what a node said; None for a sign of life; ``nonsense`` for what is no message."""
    try:
        content = json.loads(line)
        kind = content.pop("kind")
        if kind == "alive":
            return None
        if kind == "document":
            return Event(rank, "document", str(content["text"]))
        if kind == "report":
            return Event(rank, "report", Report.model_validate(content))
        if kind == "swept":
            return Event(rank, "swept", Swept.model_validate(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError):
        return Event(rank, "nonsense", "it sends what is no message of this tool")
    return Event(rank, "nonsense", "it sends a message that this version does not know")
