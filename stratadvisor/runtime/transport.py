"""Frames over TCP for workers that come and go: a JSON header and one tensor, nothing that could run code.

Process groups of torch need all ranks from the start to the end. Here a lost connection is the loss of one worker.
"""

from __future__ import annotations

import ctypes
import hmac
import json
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

HEADER_LIMIT_BYTES = 1 << 20
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 60_000}
"""A host that vanishes is noticed after 40 seconds of silence, sent data after 60 (milliseconds); shorter cuts pass."""


class LinkError(OSError):
    """The other end is gone, or says what it must not."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the word that lets a worker in."""

    host: str
    port: int
    token: str

    def to_json(self) -> str:
        """Return it as a text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Address:
        """Return what ``to_json`` wrote.

        Raises:
            ValueError: the text says something else.

        """
        data = json.loads(text)
        if not isinstance(data, dict) or set(data) != {"host", "port", "token"}:
            raise ValueError("an address needs host, port and token")
        return cls(str(data["host"]), int(data["port"]), str(data["token"]))


def _memory(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the host, without copying."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class Link:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def set_timeout(self, seconds: float | None) -> None:
        """Limit every wait; None: wait for ever (until the system finds the other end gone)."""
        self._connection.settimeout(seconds)

    def send(self, header: dict[str, Any], tensor: torch.Tensor | None = None) -> None:
        """Send a header and, on the host and contiguous, a tensor.

        Raises:
            LinkError: the other end is gone.

        """
        text = json.dumps(header).encode()
        try:
            self._connection.sendall(len(text).to_bytes(4, "little") + text)
            if tensor is not None and tensor.numel():
                self._connection.sendall(_memory(tensor))
        except OSError as problem:
            raise LinkError(f"the connection is lost: {problem.strerror or problem}") from None

    def receive(self) -> dict[str, Any]:
        """Return the next header.

        Raises:
            LinkError: the other end is gone or sends no header.

        """
        size = int.from_bytes(self._exactly(bytearray(4)), "little")
        if size > HEADER_LIMIT_BYTES:
            raise LinkError(f"a header of {size} bytes: this is no worker of ours")
        try:
            header = json.loads(self._exactly(bytearray(size)))
        except ValueError:
            header = None
        if not isinstance(header, dict):
            raise LinkError("what came is no header: this is no worker of ours")
        return header

    def receive_into(self, tensor: torch.Tensor) -> None:
        """Fill a contiguous tensor on the host.

        Raises:
            LinkError: the other end is gone.

        """
        if tensor.numel():
            self._exactly(_memory(tensor))

    def _exactly(self, buffer: Any) -> Any:
        view, done = memoryview(buffer), 0
        while done < len(view):
            try:
                count = self._connection.recv_into(view[done:])
            except OSError as problem:
                raise LinkError(f"the connection is lost: {problem.strerror or problem}") from None
            if count == 0:
                raise LinkError("the other end closed the connection")
            done += count
        return buffer

    def close(self) -> None:
        """Close; whoever waits in another thread is woken."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Listener:
    """Takes connections of those who know the token."""

    def __init__(self, host: str) -> None:
        local = host in ("localhost", "::1") or host.startswith("127.")
        self._socket = socket.create_server(("127.0.0.1" if local else "", 0))
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))

    def accept(self, hello_seconds: float = 10.0) -> tuple[Link, dict[str, Any]] | None:
        """Return the next connection and its first header; None for a stranger's.

        Raises:
            OSError: the listener was closed.

        """
        connection, _ = self._socket.accept()
        link = Link(connection)
        link.set_timeout(hello_seconds)
        try:
            hello = link.receive()
        except LinkError:
            hello = {}
        if not hmac.compare_digest(str(hello.get("token", "")), self.address.token):
            link.close()
            return None
        link.set_timeout(None)
        return link, hello

    def close(self) -> None:
        """Take no more; a thread that waits in ``accept`` is woken."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: Address, hello: dict[str, Any], seconds: float) -> Link:
    """Connect and introduce oneself.

    Raises:
        LinkError: nobody listens there.

    """
    host = "127.0.0.1" if address.host == "localhost" else address.host
    try:
        link = Link(socket.create_connection((host, address.port), timeout=seconds))
    except OSError as problem:
        raise LinkError(f"{address.host}:{address.port} cannot be reached: {problem.strerror or problem}") from None
    link.set_timeout(None)
    link.send(hello | {"token": address.token})
    return link
