"""A node's side: it reports to the conductor, gives signs of life, and does what it is told until it is dismissed."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from stratadvisor.errors import ProbeError
from stratadvisor.probe.nodes import pair
from stratadvisor.probe.nodes.messages import MAX_LINE_BYTES, Hello, Report, Swept, line_of

SIGN_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
"""Without any word of the conductor for so long, it is gone."""


class Wire(Protocol):
    """Lines to and from the conductor."""

    def send(self, line: bytes) -> None:
        """Send a whole line; used by two threads."""

    def receive(self, seconds: float) -> bytes | None:
        """Return the next line without its end; None when the time is up.

        Raises:
            ProbeError: the conductor is gone.

        """


class SocketWire:
    """A connection to a hub."""

    def __init__(self, channel: socket.socket, where: str) -> None:
        self._channel, self._where = channel, where
        self._lock = threading.Lock()
        self._read = bytearray()

    def send(self, line: bytes) -> None:
        """Send a whole line; an error shows at the next ``receive``."""
        with self._lock, contextlib.suppress(OSError):
            self._channel.sendall(line)

    def receive(self, seconds: float) -> bytes | None:
        """Return the next line."""
        end = time.monotonic() + seconds
        while True:
            at = self._read.find(b"\n")
            if at >= 0:
                line = bytes(self._read[:at])
                del self._read[: at + 1]
                return line
            if len(self._read) > MAX_LINE_BYTES:
                raise ProbeError(f"the conductor at {self._where} sends what is no message of this tool")
            ready, _, _ = select.select([self._channel], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            try:
                part = self._channel.recv(1 << 16)
            except OSError:
                part = b""
            if not part:
                raise ProbeError(
                    f"the first node, at {self._where}, is gone, or has left this node out after a silence",
                    hint="look at its output; what it had gathered is in its profile or its file ending in .partial",
                )
            self._read += part


def call(address: str, port: int, limit_seconds: float) -> socket.socket:
    """Return a connection to the hub, which may not listen yet.

    Raises:
        ProbeError: it did not listen in time.

    """
    end = time.monotonic() + limit_seconds
    trouble: OSError | None = None
    while time.monotonic() < end:
        try:
            channel = socket.create_connection((address, port), timeout=min(5.0, limit_seconds))
        except OSError as problem:
            trouble = problem
            time.sleep(0.2)
            continue
        channel.settimeout(None)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return channel
    raise ProbeError(
        f"nobody answers at {address}:{port}, where the nodes meet: {trouble.strerror or trouble if trouble else ''}",
        hint="check that this address is reachable from every node and the port is open, or set MASTER_ADDR",
    )


Collective = Callable[[str, dict[str, Any]], Swept]
"""Does ``open`` or ``sweep``: (kind, content) -> what came of it."""


class Member:
    """One node of the job."""

    def __init__(self, wire: Wire, hello: Hello, listener: socket.socket, interface: str) -> None:
        self._wire, self._listener, self._interface, self._hello = wire, listener, interface, hello
        self._stop = threading.Event()
        wire.send(hello.model_dump_json().encode() + b"\n")
        self._signs = threading.Thread(target=self._give_signs, daemon=True)
        self._signs.start()

    def _give_signs(self) -> None:
        while not self._stop.wait(SIGN_SECONDS):
            self._wire.send(line_of("alive", {}))

    def hand_over(self, document: str) -> None:
        """Send this node's own profile."""
        self._wire.send(line_of("document", {"text": document}))

    def serve(self, collective: Collective) -> str:
        """Do what the conductor asks; return why it ended, empty when all is done.

        Raises:
            ProbeError: the conductor is gone.

        """
        heard = time.monotonic()
        while True:
            line = self._wire.receive(SIGN_SECONDS)
            if line is None:
                if time.monotonic() - heard > PATIENCE_SECONDS:
                    raise ProbeError(
                        f"no word from the first node for {PATIENCE_SECONDS:g} s",
                        hint="look at its output; what it had gathered is in its file ending in .partial",
                    )
                continue
            heard = time.monotonic()
            try:
                content = json.loads(line)
                kind = content.pop("kind")
            except (ValueError, KeyError, AttributeError):
                raise ProbeError("the conductor sends what is no message of this tool") from None
            if kind == "end":
                return str(content.get("reason", ""))[:300]
            if kind in ("listen", "connect"):
                self._wire.send(line_of("report", self._pair(kind, content).model_dump()))
            elif kind in ("open", "sweep"):
                self._wire.send(line_of("swept", collective(kind, content).model_dump()))

    def _pair(self, kind: str, content: dict[str, Any]) -> Report:
        if kind == "listen":
            return pair.listen(self._listener, content, self._interface)
        source = self._hello.address if ":" not in self._hello.address else ""
        return pair.connect(content, self._interface, source)

    def leave(self) -> None:
        """Give no more signs of life."""
        self._stop.set()
        self._listener.close()
