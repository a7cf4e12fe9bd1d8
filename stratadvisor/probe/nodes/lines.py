"""Lines of JSON to and from many nodes at once, over sockets or pipes, with a watch for signs of life."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from stratadvisor.probe.nodes.messages import MAX_LINE_BYTES, Event, Hello, event_of, line_of

SILENCE_SECONDS = 15.0
"""Without a sign of life for so long, a node counts as stopped; nodes give one every second."""
ASK_SECONDS = 1.0
_READ_BYTES = 1 << 16


class Connection:
    """Both directions to one node, or to somebody who has not said yet who it is."""

    def __init__(self, source: int, target: int, rank: int | None = None) -> None:
        self.source, self.target = source, target
        self.rank = rank
        self.hello: Hello | None = None
        self.read = bytearray()
        self.write = bytearray()
        self.heard = time.monotonic()
        os.set_blocking(source, False)
        os.set_blocking(target, False)

    def close(self) -> None:
        """Close both directions."""
        raise NotImplementedError


class Lines:
    """A channel of the conductor; who connects, and why somebody ended, is for its two kinds to say."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._ready = selectors.DefaultSelector()
        self._nodes: dict[int, Connection] = {}
        self._events: deque[Event] = deque()
        self._gone: dict[int, str] = {}
        self._asked = time.monotonic()

    # what the two kinds say

    def _greeted(self, connection: Connection, line: bytes) -> bool:
        """Take a line of somebody who has not said hello; False when the connection was dropped for it."""
        raise NotImplementedError

    def _ended(self, connection: Connection, problem: OSError | None) -> str:
        """Return why a connection ended."""
        raise NotImplementedError

    def _host_state(self, connection: Connection) -> str:
        """Return what can be told of the host of a node that gives no sign of life."""
        return "its connection is still open"

    def _hello_limit(self) -> int:
        """Return the bytes that somebody may send before saying hello."""
        return MAX_LINE_BYTES

    def _look_around(self, now: float) -> None:
        """Do what is due from time to time."""

    def _others(self, key: Any) -> None:
        """Take an event of the selector that belongs to no connection."""

    # the channel

    def now(self) -> float:
        """Return the time of ``receive``'s deadlines."""
        return time.monotonic()

    def ranks(self) -> Iterable[int]:
        """Return the nodes that have said hello and are still connected."""
        return sorted(rank for rank, connection in self._nodes.items() if connection.hello is not None)

    def address(self, rank: int) -> str:
        """Return where the node says it can be reached."""
        connection = self._nodes.get(rank)
        return connection.hello.address if connection is not None and connection.hello is not None else ""

    def send(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Queue a line and send what the connection takes."""
        connection = self._nodes.get(rank)
        if connection is not None:
            connection.write += line_of(kind, content)
            self._flush(connection)

    def receive(self, until: float) -> Event | None:
        """Return the next event; None when the time is up."""
        while True:
            if self._events:
                return self._events.popleft()
            now = time.monotonic()
            if now >= until:
                return None
            for key, mask in self._ready.select(min(until - now, ASK_SECONDS / 2)):
                if not isinstance(key.data, Connection):
                    self._others(key)
                    continue
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ:
                    self._read(key.data)
            self._look_for_silence()

    def silence(self, rank: int) -> str:
        """Return why a node does not answer."""
        if rank in self._gone:
            return self._gone[rank]
        connection = self._nodes.get(rank)
        if connection is None:
            return "it never came"
        quiet = time.monotonic() - connection.heard
        if quiet < SILENCE_SECONDS / 2:
            return "it is alive but did not finish in time: slow, or kept busy by others"
        return f"no sign of life for {quiet:.0f} s, {self._host_state(connection)}"

    def close(self) -> None:
        """Close every connection once what was queued is sent, for a second at most."""
        end = time.monotonic() + 1.0
        while any(c.write for c in self._nodes.values()) and time.monotonic() < end:
            for connection in list(self._nodes.values()):
                self._flush(connection)
            time.sleep(0.01)
        for connection in list(self._nodes.values()):
            connection.close()
        self._ready.close()

    def _add(self, connection: Connection) -> None:
        self._ready.register(connection.source, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection) -> None:
        try:
            part = os.read(connection.source, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._drop(connection, self._ended(connection, problem))
            return
        if not part:
            self._drop(connection, self._ended(connection, None))
            return
        connection.heard = time.monotonic()
        searched = len(connection.read)
        connection.read += part
        begin = 0
        while (end := connection.read.find(b"\n", max(begin, searched))) >= 0:
            line = bytes(connection.read[begin:end])
            begin = end + 1
            if not self._take(connection, line):
                return
        del connection.read[:begin]
        limit = MAX_LINE_BYTES if connection.hello is not None else self._hello_limit()
        if len(connection.read) > limit:
            self._drop(connection, f"it sends more than {limit} bytes in one message")

    def _take(self, connection: Connection, line: bytes) -> bool:
        if connection.hello is None:
            return self._greeted(connection, line)
        assert connection.rank is not None
        event = event_of(connection.rank, line)
        if event is not None:
            self._events.append(event)
        return True

    def _welcome(self, connection: Connection, rank: int, hello: Hello) -> None:
        connection.rank, connection.hello = rank, hello
        self._nodes[rank] = connection
        self._events.append(Event(rank, "hello", hello))

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.write:
                with memoryview(connection.write) as view:
                    sent = os.write(connection.target, view[:_READ_BYTES])
                del connection.write[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as problem:
            self._drop(connection, self._ended(connection, problem))
            return
        self._want(connection)

    def _want(self, connection: Connection) -> None:
        """Be told when the connection takes more, while something waits."""
        with contextlib.suppress(KeyError):
            if connection.source == connection.target:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.write else 0)
                self._ready.modify(connection.source, wanted, connection)
            elif connection.write:
                if connection.target not in self._ready.get_map():
                    self._ready.register(connection.target, selectors.EVENT_WRITE, connection)
            else:
                self._ready.unregister(connection.target)

    def _drop(self, connection: Connection, reason: str) -> None:
        for descriptor in {connection.source, connection.target}:
            with contextlib.suppress(KeyError, ValueError):
                self._ready.unregister(descriptor)
        connection.close()
        if connection.rank is not None and self._nodes.pop(connection.rank, None) is not None:
            self._gone[connection.rank] = reason
            self._events.append(Event(connection.rank, "lost", reason))

    def _lost(self, rank: int, reason: str) -> None:
        """Count a node as gone that never had a connection."""
        self._gone[rank] = reason
        self._events.append(Event(rank, "lost", reason))

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        late = now - self._asked > SILENCE_SECONDS / 2  # it is this process that got no time: nobody else is to blame
        self._asked = now
        self._look_around(now)
        for connection in list(self._nodes.values()):
            if connection.hello is None:
                continue
            if late:
                connection.heard = now
            elif now - connection.heard > SILENCE_SECONDS:
                assert connection.rank is not None
                self._drop(connection, self.silence(connection.rank))
                continue
            if not connection.write:  # something for its host to acknowledge
                connection.write += line_of("alive", {})
                self._flush(connection)


def hello_of(line: bytes) -> Hello | None:
    """Return a hello; None for any other line."""
    try:
        return Hello.model_validate_json(line)
    except ValidationError:
        return None
