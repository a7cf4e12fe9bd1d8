"""Both ends of a measurement, run on hosts of a cluster: python meter.py WHAT ARGUMENTS. Standard library only.

receive ADDRESS                  print a port, then the bytes per second that arrive
send ADDRESS PORT BYTES          send so many bytes
answer ADDRESS                   print a port, then send every byte of one connection back
ping ADDRESS PORT COUNT          print round trips in seconds
burn PROCESSOR_SECONDS           print processor seconds over wall seconds while computing
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable

_CHUNK = bytes(1 << 16)
_SETTLE_SHARE = 0.2
"""The first part of a transfer fills buckets and opens windows; it is not counted."""


def receive(address: str) -> None:
    """Measure what arrives from one sender."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            expected = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            seen, begin, before = 0, 0.0, 0
            while seen < expected:
                got = connection.recv(max(1, min(1 << 20, expected // 20)))
                if not got:
                    sys.exit("the sender ended early")
                seen += len(got)
                if not begin and seen >= expected * _SETTLE_SHARE:
                    begin, before = time.perf_counter(), seen
            print((seen - before) / (time.perf_counter() - begin))


def send(address: str, port: str, num_bytes: str) -> None:
    """Send."""
    left = int(float(num_bytes))
    with socket.create_connection((address, int(port)), timeout=60) as connection:
        connection.sendall(left.to_bytes(8, "big"))
        while left > 0:
            connection.sendall(_CHUNK[:left])
            left -= len(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # until the receiver has everything


def answer(address: str) -> None:
    """Echo."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while got := connection.recv(64):
                connection.sendall(got)


def ping(address: str, port: str, count: str) -> None:
    """Time round trips."""
    with socket.create_connection((address, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(int(count)):
            begin = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            print(time.perf_counter() - begin)


def burn(processor_seconds: str) -> None:
    """Use up processor time."""
    begin, used = time.perf_counter(), time.process_time()
    while time.process_time() - used < float(processor_seconds):
        sum(range(1000))
    print((time.process_time() - used) / (time.perf_counter() - begin))


if __name__ == "__main__":
    WHAT: dict[str, Callable[..., None]] = {
        "receive": receive,
        "send": send,
        "answer": answer,
        "ping": ping,
        "burn": burn,
    }
    WHAT[sys.argv[1]](*sys.argv[2:])
