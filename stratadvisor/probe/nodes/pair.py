"""Two nodes measure the link between them over TCP: round trips, messages by size, and a transfer either way.

One of them listens and the other connects and leads. It sends one-letter commands over a first connection, and opens
further connections for the transfers. Every wait ends at the pair's limit, and what went wrong says whose fault it may
be: a refused connection is a process that is gone, a silent one a process that is stopped.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import statistics
import struct
import time
from collections.abc import Callable
from typing import Any

from stratadvisor.probe.nodes import counters
from stratadvisor.probe.nodes.messages import Flow, Point, Report
from stratadvisor.probe.nodes.transfer import (
    CHUNK_BYTES,
    EndedError,
    left,
    receive_exactly,
    receive_flow,
    send_all,
    send_flow,
)

MESSAGE_BYTES = (1024, 16 * 1024, 64 * 1024, 256 * 1024, 1024**2, 4 * 1024**2)
MANY_STREAMS = 4
ONE_STREAM_BYTES_PER_SECOND = 0.6e9
"""Above it one connection may be the limit, and several are tried."""
_ROUND_TRIPS = 20
_REPEATS = 3
_HEADER = struct.Struct("!cQ")
_GREETING_BYTES = 17
"""Sixteen hexadecimal digits of the pair's nonce and one letter."""
_GREETING_SECONDS = 3.0


def _tune(channel: socket.socket) -> socket.socket:
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return channel


class _StrangerError(Exception):
    """Somebody else answered at the partner's address."""


def listen(listener: socket.socket, task: dict[str, Any], interface: str = "") -> Report:
    """Serve one partner and report."""
    return _guarded(task, interface, lambda report, end: _serve(listener, task["nonce"], report, end))


def connect(task: dict[str, Any], interface: str = "", source: str = "") -> Report:
    """Lead the measurement with the node that listens at ``task["address"]`` and report."""
    return _guarded(task, interface, lambda report, end: _lead(task, source, report, end))


def _guarded(task: dict[str, Any], interface: str, work: Callable[[dict[str, Any], float], None]) -> Report:
    """Run one end and turn whatever happens into a report."""
    fields: dict[str, Any] = {"round": task["round"], "nonce": task["nonce"]}
    before = counters.byte_counters()
    partner = f"node {task['partner']}"
    problem: tuple[str, str] | None = None
    try:
        work(fields, time.monotonic() + task["limit"])
    except ConnectionRefusedError:
        problem = ("refused", f"{partner} refuses connections: its process has ended")
    except (ConnectionResetError, BrokenPipeError, EndedError):
        problem = ("reset", f"{partner} broke the connection off: its process has ended")
    except TimeoutError:
        problem = ("silent", f"{partner} did not answer within {task['limit']:g} s")
    except _StrangerError:
        problem = ("stranger", f"another program answers at the address of {partner}: is the address unique?")
    except OSError as trouble:
        problem = ("unreachable", f"{partner} cannot be reached: {trouble.strerror or trouble}")
    if problem is not None:
        return Report(
            round=task["round"],
            nonce=task["nonce"],
            status="failed",
            cause=problem[0],
            reason=problem[1][:300],
        )
    moved = sum(fields[name].total_bytes for name in ("sent", "received") if name in fields)
    used = counters.carrier(before, counters.byte_counters(), moved, interface)
    return Report(**fields, interface=used, interface_bytes_per_second=counters.stated_rate(used))


def _accept(listener: socket.socket, nonce: str, letter: bytes, end: float) -> socket.socket:
    """Return the next connection that greets rightly; others are closed."""
    while True:
        listener.settimeout(left(end))
        channel, _ = listener.accept()
        with contextlib.suppress(OSError, EndedError):
            greeting = receive_exactly(channel, _GREETING_BYTES, min(end, time.monotonic() + _GREETING_SECONDS))
            if hmac.compare_digest(greeting, nonce.encode() + letter):
                send_all(channel, b"!", end)
                return _tune(channel)
        channel.close()


def _serve(listener: socket.socket, nonce: str, report: dict[str, Any], end: float) -> None:
    received: list[Flow] = []
    sent: list[Flow] = []
    with _accept(listener, nonce, b"T", end) as talk:
        while True:
            letter, number = _HEADER.unpack(receive_exactly(talk, _HEADER.size, end))
            if letter == b"P":
                send_all(talk, b"P", end)
            elif letter == b"M":
                _discard(talk, number, end)
                send_all(talk, b"A", end)
            elif letter == b"G":
                _send_zeros(talk, number, end)
            elif letter in (b"S", b"R"):
                streams, milliseconds = number >> 32, number & 0xFFFFFFFF
                sockets = [_accept(listener, nonce, b"D", end) for _ in range(min(streams, MANY_STREAMS))]
                if letter == b"S":
                    received.append(receive_flow(sockets, milliseconds / 1000, end))
                    send_all(talk, struct.pack("!d", received[-1].steady_bytes_per_second), end)
                else:
                    sent.append(send_flow(sockets, end))
            else:
                break
        with contextlib.suppress(OSError):
            send_all(talk, b"Q", end)
    # the leader says which transfer of each direction counts: both ends must speak of the same one
    pushed, pulled = number >> 32, number & 0xFFFFFFFF
    if pushed >= len(received) or pulled >= len(sent):
        raise EndedError("the partner left before the transfers")
    report["received"], report["sent"] = received[pushed], sent[pulled]


def _discard(talk: socket.socket, size: int, end: float) -> None:
    while size > 0:
        size -= len(receive_exactly(talk, min(size, CHUNK_BYTES), end))


def _send_zeros(talk: socket.socket, size: int, end: float) -> None:
    chunk = memoryview(bytes(CHUNK_BYTES))
    while size > 0:
        send_all(talk, chunk[: min(size, CHUNK_BYTES)], end)
        size -= CHUNK_BYTES


class _Leader:
    """The connecting end of one pair."""

    def __init__(self, task: dict[str, Any], source: str, end: float) -> None:
        self._target = (str(task["address"]), int(task["port"]))
        self._nonce, self._source, self._end = str(task["nonce"]), source, end
        self.talk = self.open(b"T")

    def open(self, letter: bytes) -> socket.socket:
        """Open a connection and greet."""
        source = (self._source, 0) if self._source else None
        channel = socket.create_connection(self._target, timeout=left(self._end), source_address=source)
        try:
            send_all(_tune(channel), self._nonce.encode() + letter, self._end)
            if receive_exactly(channel, 1, self._end) != b"!":
                raise _StrangerError
        except (ConnectionResetError, EndedError):
            channel.close()
            # whoever listens there closed it on hearing the nonce
            raise _StrangerError from None
        except BaseException:
            channel.close()
            raise
        return channel

    def command(self, letter: bytes, number: int = 0) -> None:
        send_all(self.talk, _HEADER.pack(letter, number), self._end)

    def round_trip(self) -> float:
        begin = time.perf_counter()
        self.command(b"P")
        receive_exactly(self.talk, 1, self._end)
        return max(time.perf_counter() - begin, 1e-9)

    def message(self, size: int) -> float:
        """Return the seconds of a message of ``size`` bytes and its acknowledgement."""
        begin = time.perf_counter()
        self.command(b"M", size)
        _send_zeros(self.talk, size, self._end)
        receive_exactly(self.talk, 1, self._end)
        return time.perf_counter() - begin

    def fetched(self, size: int) -> float:
        """Return the seconds of a request and a message of ``size`` bytes in answer."""
        begin = time.perf_counter()
        self.command(b"G", size)
        _discard(self.talk, size, self._end)
        return time.perf_counter() - begin

    def streams(self, letter: bytes, count: int, seconds: float) -> list[socket.socket]:
        self.command(letter, count << 32 | int(seconds * 1000))
        return [self.open(b"D") for _ in range(count)]

    def push(self, count: int, seconds: float) -> tuple[Flow, float]:
        """Send for a while; return this end's view and the rate that the other end saw."""
        flow = send_flow(self.streams(b"S", count, seconds), self._end)
        (rate,) = struct.unpack("!d", receive_exactly(self.talk, 8, self._end))
        return flow, float(rate)

    def pull(self, count: int, seconds: float) -> Flow:
        return receive_flow(self.streams(b"R", count, seconds), seconds, self._end)


def _lead(task: dict[str, Any], source: str, report: dict[str, Any], end: float) -> None:
    seconds = float(task["seconds"])
    leader = _Leader(task, source, end)
    with leader.talk:
        trip = min(leader.round_trip() for _ in range(_ROUND_TRIPS))
        report["round_trip_seconds"] = trip
        report["points"] = tuple(_points(leader, trip, seconds))
        pushes, pulls = [leader.push(1, seconds)], [leader.pull(1, seconds)]
        if min(pushes[0][1], pulls[0].steady_bytes_per_second) > ONE_STREAM_BYTES_PER_SECOND:
            pushes.append(leader.push(MANY_STREAMS, seconds))
            pulls.append(leader.pull(MANY_STREAMS, seconds))
        pushed = max(range(len(pushes)), key=lambda index: pushes[index][1])
        pulled = max(range(len(pulls)), key=lambda index: pulls[index].steady_bytes_per_second)
        report["sent"], report["received"] = pushes[pushed][0], pulls[pulled]
        leader.command(b"Q", pushed << 32 | pulled)
        receive_exactly(leader.talk, 1, end)


def _points(leader: _Leader, trip: float, budget: float) -> list[Point]:
    """Return one-way times by message size, the mean of both directions, while they fit into the budget."""
    points: list[Point] = []
    begin = time.perf_counter()
    for size in MESSAGE_BYTES:
        taken = [leader.message(size) + leader.fetched(size) for _ in range(_REPEATS)]
        # each of the two is one way with the message and one way without
        points.append(Point(message_bytes=size, seconds=max(statistics.median(taken) / 2 - trip / 2, 1e-9)))
        used = time.perf_counter() - begin
        if used + 4 * _REPEATS * taken[-1] > budget:
            break
    return points
