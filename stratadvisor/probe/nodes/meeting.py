"""Where the nodes of a job meet: the address that the first one listens on, and the one each is reached at.

Whoever listens does so on the chosen interface alone, where that can be told.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from stratadvisor.errors import ProbeError
from stratadvisor.probe.files import read_text
from stratadvisor.probe.nics import system_addresses
from stratadvisor.schema.profile import NicProfile

_REAL = ("infiniband", "roce", "efa", "ethernet")
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_FAMILIES = {socket.AF_INET, socket.AF_INET6}


def resolved(host: str, port: int) -> list[str]:
    """Return the addresses of a host, IPv4 first; empty when it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError):
        return []
    usable = sorted((entry for entry in found if entry[0] in _FAMILIES), key=lambda entry: entry[0].value)
    return list(dict.fromkeys(str(entry[4][0]) for entry in usable))


def is_loopback(address: str) -> bool:
    """Whether only this machine can be meant."""
    return address.startswith("127.") or address in ("localhost", "::1")


def name_is_loopback(hostname: str, root: Path = Path("/")) -> bool:
    """Whether /etc/hosts gives a host's own name to the loopback (``127.0.1.1 node3``), as some installers do.

    The file is read, no name server is asked: that may take long.
    """
    for line in (read_text(root / "etc/hosts") or "").splitlines():
        words = line.partition("#")[0].split()
        if hostname in words[1:]:
            return is_loopback(words[0])
    return False


def wished_interface(environ: Mapping[str, str]) -> str:
    """Return the interface that the user named for gloo or NCCL; empty for none, and for lists and exclusions."""
    for name in _INTERFACE_VARIABLES:
        value = environ.get(name, "").removeprefix("=")
        if value and not set(value) & {"^", ","}:
            return value
    return ""


def interface_of(address: str, addresses: Mapping[str, Sequence[str]]) -> str:
    """Return the interface that has an address; empty when none has."""
    return next((name for name, owned in addresses.items() if address in owned), "")


def first_real(nics: Sequence[NicProfile]) -> str:
    """Return the address of the first interface with hardware, else of any but the loopback; empty without one."""
    for kinds in (_REAL, ("virtual", "unknown")):
        for nic in nics:
            if nic.kind in kinds and nic.up is not False and nic.addresses:
                return nic.addresses[0]
    return ""


def listening_address(host: str, port: int, nics: Sequence[NicProfile]) -> str:
    """Return the address on which the first node listens so that the others reach it at ``host``.

    The loopback when that is what ``host`` says; the first real interface when a host's own name leads to the loopback
    (``127.0.1.1 node3`` in /etc/hosts); empty, that is all interfaces, when the address belongs to none of this host's
    (a service address of Kubernetes).
    """
    found = resolved(host, port)
    if is_loopback(host) or (found and is_loopback(found[0]) and host == found[0]):
        return found[0] if found else "127.0.0.1"
    if not found or is_loopback(found[0]):
        return first_real(nics)
    return found[0] if interface_of(found[0], system_addresses()) else ""


def listen_on(address: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ProbeError: the port is in use, or the address is not this host's.

    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as problem:
        raise ProbeError(
            f"the nodes cannot meet at port {port} of {address or 'this host'}: {problem.strerror}",
            hint="set MASTER_PORT to a free port on the first node",
        ) from None


def reached_at(channel: socket.socket, environ: Mapping[str, str], nics: Sequence[NicProfile]) -> tuple[str, str]:
    """Return (address, interface) for the partners of this node.

    The interface that the user named, else the one that reaches the first node, which is never the loopback unless all
    nodes are on this machine.
    """
    addresses = {nic.name: nic.addresses for nic in nics} or system_addresses()
    wished = wished_interface(environ)
    if wished and addresses.get(wished):
        return addresses[wished][0], wished
    address = str(channel.getsockname()[0])
    return address, interface_of(address, addresses)


def raise_file_limit(wanted: int) -> None:
    """Allow as many open connections as there are nodes, as far as the hard limit lets us."""
    if os.name != "posix":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = wanted + 256
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need if hard == resource.RLIM_INFINITY else min(need, hard), hard))
