"""A node of ``probe --hosts``: started over ssh, it speaks with the conductor over its standard input and output.

The first line that comes in says what to measure. Nothing listens for the conductor; only the partners of a pair
connect to each other, at an address and a port that the node names.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from typing import Any

from stratadvisor.errors import ProbeError, StratadvisorError
from stratadvisor.probe import nics as interfaces
from stratadvisor.probe.nodes.collective import Collectives
from stratadvisor.probe.nodes.meeting import first_real, interface_of, is_loopback, name_is_loopback, wished_interface
from stratadvisor.probe.nodes.member import Member
from stratadvisor.probe.nodes.messages import MAX_LINE_BYTES, Hello
from stratadvisor.probe.run import probe_node

_FIRST_SECONDS = 60.0


class PipeWire:
    """Lines over two pipes; when the other side is gone, this process ends at once, and its children with it."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._lock = threading.Lock()
        self._read = bytearray()

    def send(self, line: bytes) -> None:
        """Send a whole line."""
        with self._lock:
            view = memoryview(line)
            while view:
                try:
                    view = view[os.write(self._target, view) :]
                except OSError:
                    os._exit(1)

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
                raise ProbeError("the conductor sends what is no message of this tool")
            ready, _, _ = select.select([self._source], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            part = os.read(self._source, 1 << 16)
            if not part:
                raise ProbeError("the conductor is gone")
            self._read += part


def own_address(environ: dict[str, str]) -> tuple[str, str]:
    """Return (address, interface) for the partners: what ssh was reached at, unless the user named an interface."""
    nics = interfaces.collect()
    addresses = {nic.name: nic.addresses for nic in nics}
    wished = wished_interface(environ)
    if wished and addresses.get(wished):
        return addresses[wished][0], wished
    words = environ.get("SSH_CONNECTION", "").split()
    reached = words[2].partition("%")[0] if len(words) == 4 else ""
    if not reached or is_loopback(reached) or not interface_of(reached, addresses):
        reached = first_real(nics) or "127.0.0.1"
    return reached, interface_of(reached, addresses)


def run(wire: PipeWire) -> None:
    """Take part in one probe."""
    line = wire.receive(_FIRST_SECONDS)
    if line is None:
        raise ProbeError("nobody said what to measure")
    settings: dict[str, Any] = json.loads(line)
    address, interface = own_address(dict(os.environ))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=64)
    hostname = (socket.gethostname() or "localhost")[:255]
    hello = Hello(
        hostname=hostname,
        address=address,
        port=int(listener.getsockname()[1]),
        name_is_loopback=name_is_loopback(hostname) and not is_loopback(address),
    )
    member = Member(wire, hello, listener, interface)
    try:
        profile = probe_node(
            only=tuple(settings["only"]),
            skip=tuple(settings["skip"]),
            quick=bool(settings["quick"]),
            time_limit_seconds=float(settings["time_limit_seconds"]),
        )
        member.hand_over(profile.model_dump_json())
        with Collectives(profile, address, interface, quick=bool(settings["quick"])) as collectives:
            member.serve(collectives.do)
    finally:
        member.leave()


def main() -> None:
    """Keep standard output for the conductor alone: what libraries print goes to standard error."""
    target = os.dup(1)
    os.dup2(2, 1)
    try:
        run(PipeWire(0, target))
    except StratadvisorError as problem:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"error: {problem}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
