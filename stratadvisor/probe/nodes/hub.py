"""Where the nodes of a job report: one listening socket of the first node.

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
from typing import Any

from stratadvisor.probe.nodes.lines import Connection, Lines, hello_of

_HELLO_BYTES = 4096
_HELLO_SECONDS = 15.0
_SIOCOUTQ = 0x5411
"""linux/sockios.h: bytes sent and not acknowledged yet."""


class _Caller(Connection):
    """A connection that a node opened."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(channel.fileno(), channel.fileno())
        self.channel = channel

    def close(self) -> None:
        """Close the socket."""
        self.channel.close()


class Hub(Lines):
    """The channel of the first node's conductor."""

    def __init__(self, listener: socket.socket, key: str, num_nodes: int) -> None:
        super().__init__(num_nodes)
        self._listener, self._key = listener, key
        self._listener.setblocking(False)
        self._ready.register(listener, selectors.EVENT_READ, None)
        self._unknown: set[_Caller] = set()

    def address(self, rank: int) -> str:
        """Return where the node says it can be reached, or where it called from."""
        said = super().address(rank)
        connection = self._nodes.get(rank)
        if not said and isinstance(connection, _Caller):
            with contextlib.suppress(OSError):
                return str(connection.channel.getpeername()[0])
        return said

    def close(self) -> None:
        """Close every connection and the listening socket."""
        self._listener.close()
        for connection in self._unknown:
            connection.close()
        super().close()

    def _others(self, key: Any) -> None:
        with contextlib.suppress(OSError):
            channel, _ = self._listener.accept()
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Caller(channel)
            self._unknown.add(connection)
            self._add(connection)

    def _hello_limit(self) -> int:
        return _HELLO_BYTES

    def _greeted(self, connection: Connection, line: bytes) -> bool:
        assert isinstance(connection, _Caller)
        self._unknown.discard(connection)
        hello = hello_of(line)
        if hello is not None:
            rank = self._free_rank() if hello.rank is None else hello.rank
            taken = rank in self._nodes or rank in self._gone
            if rank < self._num_nodes and not taken and hmac.compare_digest(hello.key.encode(), self._key.encode()):
                self._welcome(connection, rank, hello)
                return True
        self._drop(connection, "")
        return False

    def _free_rank(self) -> int:
        """Return a number for a node whose launcher gave it none; 0 is this node's own."""
        taken = {*self._nodes, *self._gone}
        return next((rank for rank in range(1, self._num_nodes) if rank not in taken), self._num_nodes)

    def _look_around(self, now: float) -> None:
        for connection in list(self._unknown):
            if now - connection.heard > _HELLO_SECONDS:
                self._unknown.discard(connection)
                self._drop(connection, "")

    def _ended(self, connection: Connection, problem: OSError | None) -> str:
        if problem is None:
            return "its process has ended: its host closed the connection"
        if problem.errno in (errno.ECONNRESET, errno.EPIPE):
            return "its process has ended: its host reset the connection"
        return f"its connection broke: {problem.strerror or problem}"

    def _host_state(self, connection: Connection) -> str:
        assert isinstance(connection, _Caller)
        unacknowledged = _unacknowledged(connection.channel)
        if unacknowledged is None:
            return super()._host_state(connection)
        if unacknowledged:
            return "and its host acknowledges nothing: it is down, or cut off from the network"
        return "though its host still acknowledges what it is sent: its process is stopped, or gets no processor time"


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
