"""Where the nodes of a job report: one listening socket, lines of JSON, signs of life, and causes for silence.

A node that ends closes its connection; its kernel does that even when the process is killed. One that is stopped keeps
it open and says nothing, while its kernel still acknowledges what it is sent; one that is down or cut off does not
acknowledge either. So the three are told apart.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import selectors
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from stratadvisor.probe.nodes.messages import MAX_LINE_BYTES, Event, Hello, event_of, line_of

SILENCE_SECONDS = 15.0
"""Without a sign of life for so long, a node counts as stopped; nodes give one every second."""
ASK_SECONDS = 1.0
_HELLO_BYTES = 4096
_HELLO_SECONDS = 15.0
_SIOCOUTQ = 0x5411
"""linux/sockios.h: bytes sent and not acknowledged yet."""
_READ_BYTES = 1 << 20


class _Connection:
    """One node, or somebody who has not said yet who it is."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.rank: int | None = None
        self.hello: Hello | None = None
        self.read = bytearray()
        self.write = bytearray()
        self.heard = time.monotonic()


class Hub:
    """A channel of the conductor."""

    def __init__(self, listener: socket.socket, key: str, num_nodes: int) -> None:
        self._listener, self._key, self._num_nodes = listener, key, num_nodes
        self._listener.setblocking(False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(listener, selectors.EVENT_READ, None)
        self._nodes: dict[int, _Connection] = {}
        self._unknown: set[_Connection] = set()
        self._events: deque[Event] = deque()
        self._gone: dict[int, str] = {}
        self._asked = time.monotonic()

    def now(self) -> float:
        """Return the time of ``receive``'s deadlines."""
        return time.monotonic()

    def ranks(self) -> Iterable[int]:
        """Return the nodes that have said hello and are still connected."""
        return sorted(self._nodes)

    def address(self, rank: int) -> str:
        """Return where the node says it can be reached, or where it called from."""
        connection = self._nodes.get(rank)
        if connection is None or connection.hello is None:
            return ""
        if connection.hello.address:
            return connection.hello.address
        with contextlib.suppress(OSError):
            return str(connection.channel.getpeername()[0])
        return ""

    def send(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Queue a line and send what the socket takes."""
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
                if key.data is None:
                    self._accept()
                else:
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
        for connection in [*self._nodes.values(), *self._unknown]:
            connection.channel.close()
        self._listener.close()
        self._ready.close()

    def _host_state(self, connection: _Connection) -> str:
        unacknowledged = _unacknowledged(connection.channel)
        if unacknowledged is None:
            return "its connection is still open"
        if unacknowledged:
            return "and its host acknowledges nothing: it is down, or cut off from the network"
        return "though its host still acknowledges what it is sent: its process is stopped, or gets no processor time"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            channel, _ = self._listener.accept()
            channel.setblocking(False)
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(channel)
            self._unknown.add(connection)
            self._ready.register(channel, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        try:
            part = connection.channel.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as problem:
            self._drop(connection, _ended(problem))
            return
        if not part:
            self._drop(connection, "its process has ended: its host closed the connection")
            return
        connection.heard = time.monotonic()
        connection.read += part
        while (end := connection.read.find(b"\n")) >= 0:
            line = bytes(connection.read[:end])
            del connection.read[: end + 1]
            if not self._take(connection, line):
                return
        limit = MAX_LINE_BYTES if connection.hello is not None else _HELLO_BYTES
        if len(connection.read) > limit:
            self._drop(connection, f"it sends a message of more than {limit} bytes")

    def _take(self, connection: _Connection, line: bytes) -> bool:
        """Take one line; False when the connection was dropped for it."""
        if connection.rank is not None:
            event = event_of(connection.rank, line)
            if event is not None:
                self._events.append(event)
            return True
        try:
            hello = Hello.model_validate_json(line)
        except ValidationError:
            self._drop(connection, "")
            return False
        rank = self._free_rank() if hello.rank is None else hello.rank
        taken = rank in self._nodes or rank in self._gone
        if rank >= self._num_nodes or taken or not hmac.compare_digest(hello.key.encode(), self._key.encode()):
            self._drop(connection, "")
            return False
        connection.rank, connection.hello = rank, hello
        self._unknown.discard(connection)
        self._nodes[rank] = connection
        self._events.append(Event(rank, "hello", hello))
        return True

    def _free_rank(self) -> int:
        """Return a number for a node whose launcher gave it none; 0 is this node's own."""
        taken = {*self._nodes, *self._gone}
        return next((rank for rank in range(1, self._num_nodes) if rank not in taken), self._num_nodes)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.write:
                sent = connection.channel.send(memoryview(connection.write)[:_READ_BYTES])
                del connection.write[:sent]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as problem:
            self._drop(connection, _ended(problem))
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.write else 0)
        with contextlib.suppress(KeyError):
            self._ready.modify(connection.channel, wanted, connection)

    def _drop(self, connection: _Connection, reason: str) -> None:
        with contextlib.suppress(KeyError):
            self._ready.unregister(connection.channel)
        connection.channel.close()
        self._unknown.discard(connection)
        if connection.rank is not None and self._nodes.pop(connection.rank, None) is not None:
            self._gone[connection.rank] = reason
            self._events.append(Event(connection.rank, "lost", reason))

    def _look_for_silence(self) -> None:
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        late = now - self._asked > SILENCE_SECONDS / 2  # it is this process that got no time: nobody else is to blame
        self._asked = now
        for connection in list(self._unknown):
            if now - connection.heard > _HELLO_SECONDS:
                self._drop(connection, "")
        for connection in list(self._nodes.values()):
            if late:
                connection.heard = now
            elif now - connection.heard > SILENCE_SECONDS:
                assert connection.rank is not None
                self._drop(connection, self.silence(connection.rank))
                continue
            if not connection.write:  # something for its host to acknowledge
                connection.write += line_of("alive", {})
                self._flush(connection)


def _ended(problem: OSError) -> str:
    if problem.errno in (errno.ECONNRESET, errno.EPIPE):
        return "its process has ended: its host reset the connection"
    return f"its connection broke: {problem.strerror or problem}"


def _unacknowledged(channel: socket.socket) -> int | None:
    """Return the bytes that the other host has not acknowledged; None where the kernel does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl

    try:
        answer = fcntl.ioctl(channel.fileno(), _SIOCOUTQ, struct.pack("i", 0))
    except (OSError, ValueError):
        return None
    return int(struct.unpack("i", answer)[0])
