"""Where this process stands among those that a launcher (torchrun, srun) started."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratadvisor.errors import UsageError
from stratadvisor.schema.profile import NicProfile

_FIRST_PORT, _NUM_PORTS = 20000, 20000
"""Range for the meeting port of a Slurm step without MASTER_PORT; the job's number picks one: jobs do not collide."""
_LARGEST = 2**31 - 1
_REAL = ("infiniband", "roce", "efa", "ethernet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process of a job of several."""

    rank: int
    local_rank: int
    node_rank: int
    num_nodes: int
    address: str
    """Host where all nodes meet."""
    port: int
    store_is_running: bool
    """torchrun already serves the meeting point; else the first node does."""

    @property
    def leads(self) -> bool:
        """Whether this process probes its node."""
        return self.local_rank == 0


def _number(environ: Mapping[str, str], name: str, largest: int = _LARGEST) -> int:
    try:
        value = int(environ[name])
    except KeyError:
        raise UsageError(
            f"the launcher set RANK or SLURM_PROCID but not {name}", hint="start with torchrun or srun, or without both"
        ) from None
    except ValueError:
        raise UsageError(f"{name} is {environ[name][:40]!r}, which is not a whole number") from None
    if not 0 <= value <= largest:
        raise UsageError(f"{name} is {value}, which is not between 0 and {largest}")
    return value


def place(environ: Mapping[str, str]) -> Place | None:
    """Return the place among several processes; None for a process that runs by itself.

    torchrun sets RANK, WORLD_SIZE and their local twins; srun sets SLURM_PROCID in a step of several tasks (a batch
    script has it too, but no SLURM_STEP_NUM_TASKS of its own).

    Raises:
        UsageError: the launcher's variables contradict each other.

    """
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _torchrun(environ)
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return _slurm(environ)
    return None


def _torchrun(environ: Mapping[str, str]) -> Place | None:
    world_size = _number(environ, "WORLD_SIZE")
    if world_size < 2:
        return None
    local_size = _number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world_size
    rank = _number(environ, "RANK")
    if not 0 <= rank < world_size or local_size < 1 or world_size % local_size:
        raise UsageError(
            f"RANK={rank}, WORLD_SIZE={world_size} and LOCAL_WORLD_SIZE={local_size} contradict each other",
            hint="start the same number of processes on every node; one per node is enough",
        )
    return Place(
        rank=rank,
        local_rank=_number(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else rank % local_size,
        node_rank=_number(environ, "GROUP_RANK") if "GROUP_RANK" in environ else rank // local_size,
        num_nodes=world_size // local_size,
        address=environ.get("MASTER_ADDR", "localhost"),
        port=_number(environ, "MASTER_PORT", 65535) if "MASTER_PORT" in environ else 29500,
        store_is_running=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def first_host(nodes: str) -> str:
    """Return the first name of a Slurm node list: ``gpu[07,12-15],cpu1`` -> ``gpu07``."""
    depth, end = 0, len(nodes)
    for position, sign in enumerate(nodes):
        depth += {"[": 1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            end = position
            break
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", nodes[:end])


def _slurm(environ: Mapping[str, str]) -> Place | None:
    if _number(environ, "SLURM_STEP_NUM_TASKS") < 2:
        return None
    job = _number(environ, "SLURM_JOB_ID") if "SLURM_JOB_ID" in environ else 0
    port = _number(environ, "MASTER_PORT", 65535) if "MASTER_PORT" in environ else _FIRST_PORT + job % _NUM_PORTS
    return Place(
        rank=_number(environ, "SLURM_PROCID"),
        local_rank=_number(environ, "SLURM_LOCALID"),
        node_rank=_number(environ, "SLURM_NODEID"),
        num_nodes=_number(environ, "SLURM_STEP_NUM_NODES"),
        address=environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", "localhost")),
        port=port,
        store_is_running=False,
    )


def interface_towards(host: str, port: int, nics: Sequence[NicProfile]) -> str:
    """Return the interface that reaches ``host``; empty when it cannot be told.

    The kernel is asked for the source address of a datagram that is never sent. A host whose own name leads to the
    loopback (``127.0.1.1 node3`` in /etc/hosts) would meet nobody there: the first real interface is then taken.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            source = str(probe.getsockname()[0])
    except (OSError, ValueError, OverflowError):  # no such host, or a text that is no name at all
        source = ""
    if (source and not _is_loopback(source)) or _is_loopback(host):
        return next((nic.name for nic in nics if source in nic.addresses), "")
    return next((nic.name for nic in nics if nic.kind in _REAL and nic.up is not False and nic.addresses), "")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "::1")
