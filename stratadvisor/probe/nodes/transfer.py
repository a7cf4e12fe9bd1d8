"""Bytes through sockets for a while, timed by the end that receives: nobody compares clocks.

The receiver counts what arrives after the start (a congestion window that still grows, a token bucket that is still
full) and closes the sockets when it has seen enough; that ends the sender.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence

from stratadvisor.probe.nodes.messages import Flow

CHUNK_BYTES = 256 * 1024
START_SHARE = 0.3
"""Of the time, at its beginning, that does not count."""
_MOST_TIMES = 3
"""A slow link gets up to so many times the usual time, until enough has arrived."""
_ENOUGH_BYTES = 256 * 1024
_NOT_SENT_BYTES = 128 * 1024
"""Bytes that the sender's kernel may hold beside those under way: a slow link must not drain megabytes for minutes."""
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)


class EndedError(Exception):
    """The partner has closed the connection."""


def left(end: float) -> float:
    """Return the seconds until ``end``.

    Raises:
        TimeoutError: there are none.

    """
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the time for this pair is over")
    return seconds


def receive_flow(sockets: Sequence[socket.socket], seconds: float, end: float) -> Flow:
    """Read for about ``seconds`` after the first byte, at the latest until ``end`` (monotonic), and close."""
    buffer = bytearray(CHUNK_BYTES)
    first = last = 0.0
    total = counted = 0
    counting_from: float | None = None
    with selectors.DefaultSelector() as ready:
        for each in sockets:
            each.setblocking(False)
            ready.register(each, selectors.EVENT_READ)
        while ready.get_map():
            now = time.monotonic()
            if now >= end or (total and _seen_enough(now - first, seconds, counted)):
                break
            until = end if not total else min(end, first + _MOST_TIMES * seconds)
            for key, _ in ready.select(max(0.0, min(until - now, seconds / 4))):
                try:
                    size = key.fileobj.recv_into(buffer)  # type: ignore[union-attr]
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    size = 0
                if not size:
                    ready.unregister(key.fileobj)
                    continue
                last = time.monotonic()
                if not total:
                    first = last
                total += size
                if counting_from is not None:
                    counted += size
                elif last - first >= START_SHARE * seconds:
                    counting_from = last
    for each in sockets:
        each.close()
    steady = counted / (last - counting_from) if counting_from is not None and last > counting_from else 0.0
    if not steady and last > first:
        steady = total / (last - first)
    return Flow(total_bytes=total, seconds=max(last - first, 0.0), steady_bytes_per_second=steady)


def _seen_enough(passed: float, seconds: float, counted: int) -> bool:
    return passed >= _MOST_TIMES * seconds or (passed >= seconds and counted >= _ENOUGH_BYTES)


def send_flow(sockets: Sequence[socket.socket], end: float) -> Flow:
    """Write until the other side has closed all sockets, at the latest until ``end``."""
    chunk = memoryview(bytes(CHUNK_BYTES))
    total = 0
    begin = time.monotonic()
    with selectors.DefaultSelector() as ready:
        for each in sockets:
            each.setblocking(False)
            with contextlib.suppress(OSError):
                each.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOT_SENT_BYTES)
            ready.register(each, selectors.EVENT_WRITE | selectors.EVENT_READ)
        while ready.get_map() and time.monotonic() < end:
            for key, events in ready.select(0.25):
                try:
                    if events & selectors.EVENT_WRITE:
                        total += key.fileobj.send(chunk)  # type: ignore[union-attr]
                    elif not key.fileobj.recv(1):  # type: ignore[union-attr]
                        ready.unregister(key.fileobj)
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError:
                    ready.unregister(key.fileobj)
    for each in sockets:
        each.close()
    return Flow(total_bytes=total, seconds=time.monotonic() - begin)


def send_all(channel: socket.socket, data: bytes | memoryview, end: float) -> None:
    """Send everything within the time."""
    view = memoryview(data)
    while view:
        channel.settimeout(left(end))
        view = view[channel.send(view) :]


def receive_exactly(channel: socket.socket, size: int, end: float) -> bytes:
    """Return the next ``size`` bytes.

    Raises:
        EndedError: the connection was closed before.
        TimeoutError: they did not come in time.

    """
    parts = bytearray()
    while len(parts) < size:
        channel.settimeout(left(end))
        part = channel.recv(min(size - len(parts), CHUNK_BYTES))
        if not part:
            raise EndedError("the partner closed the connection")
        parts += part
    return bytes(parts)
