"""A cluster that stands: run commands on its hosts, start ranks, change it while they run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from lab.cpu_group import CpuGroup, controller
from lab.errors import LabError, LabUnavailableError
from lab.naming import new_name
from lab.network import DEVICE, Network, address
from lab.place import Place, join_words
from lab.requirements import unavailable
from lab.shell import pids
from lab.spec import Host, Spec
from lab.sweep import remove, state_file, sweep

PORT = 29500
"""Every namespace has all ports to itself, so this one is always free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of a job over the whole cluster."""

    host: Host
    rank: int
    local_rank: int
    node_rank: int


class Cluster:
    """The hosts of a declared cluster, standing; made by ``cluster``."""

    def __init__(self, name: str, spec: Spec) -> None:
        self.name, self.spec = name, spec
        self.network = Network(name, spec)
        self.groups: dict[str, CpuGroup] = {}
        self.addresses = {host.name: address(index) for index, host in enumerate(spec.hosts)}
        """Host -> its address on ``eth0``."""
        self.device = DEVICE

    def build(self) -> None:
        """Lay the hosts out."""
        state_file(self.name).write_text(json.dumps(asdict(self.spec)) + "\n")
        where = controller()
        if where is not None:
            for host in self.spec.hosts:
                self.groups[host.name] = CpuGroup(where, self.network.namespace(host.name))
                self.groups[host.name].limit(host.cpu)
            relay = CpuGroup(where, self.network.switch)  # for its weight: a late relay is a longer cable
            self.network.relay_words = join_words(relay.members)
        self.network.build()

    def close(self) -> None:
        """Take everything away again.

        Raises:
            LabError: something cannot be removed.

        """
        try:
            remove(self.name)
        finally:
            self.network.close()

    # processes

    def host(self, name: str) -> Host:
        """Return a host by its name."""
        for host in self.spec.hosts:
            if host.name == name:
                return host
        raise LabError(f"there is no host {name!r}; there are {', '.join(self.addresses)}")

    def place(self, host: str) -> Place:
        """Return where processes of a host run; ``Place.enter`` is for processes that were forked."""
        group = self.groups.get(host)
        return Place(
            host=host,
            namespace=self.network.namespace(self.host(host).name),
            members=None if group is None else group.members,
            cores=self.host(host).cores,
        )

    def popen(self, host: str, argv: Sequence[str], env: Mapping[str, str] | None = None, **how: Any) -> Any:
        """Start a command on a host and return its ``subprocess.Popen``; ``env`` is added to this environment."""
        words = [*self.place(host).words(), *argv]
        return subprocess.Popen(words, env={**os.environ, **(env or {})}, **how)

    def run(
        self,
        host: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end and return it, with ``stdout`` and ``stderr`` as text.

        Raises:
            LabError: with ``check``, the command failed.
            subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.

        """
        words = [*self.place(host).words(), *argv]
        done = subprocess.run(
            words,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise LabError(f"{host}: {' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done

    def ranks(self) -> tuple[Rank, ...]:
        """Return the processes of a job: host after host, each with its ``ranks``."""
        found: list[Rank] = []
        for node_rank, host in enumerate(self.spec.hosts):
            for local_rank in range(host.ranks):
                found.append(Rank(host=host, rank=len(found), local_rank=local_rank, node_rank=node_rank))
        return tuple(found)

    def rank_environment(self, rank: Rank, port: int = PORT) -> dict[str, str]:
        """Return what torch.distributed's ``env://`` and gloo want to know."""
        return {
            "RANK": str(rank.rank),
            "LOCAL_RANK": str(rank.local_rank),
            "GROUP_RANK": str(rank.node_rank),
            "WORLD_SIZE": str(self.spec.world_size),
            "LOCAL_WORLD_SIZE": str(rank.host.ranks),
            "MASTER_ADDR": self.addresses[self.spec.hosts[0].name],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": self.device,
            "TP_SOCKET_IFNAME": self.device,
        }

    def torchrun(
        self,
        argv: Sequence[str],
        *,
        launcher: Sequence[str] = ("torchrun",),
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        **how: Any,
    ) -> dict[str, Any]:
        """Start ``torchrun ... argv`` on every host, each with its ``ranks``; return host -> ``subprocess.Popen``."""
        first = self.addresses[self.spec.hosts[0].name]
        started = {}
        for node_rank, host in enumerate(self.spec.hosts):
            options = (
                *("--nnodes", str(len(self.spec.hosts)), "--nproc-per-node", str(host.ranks)),
                *("--node-rank", str(node_rank), "--master-addr", first, "--master-port", str(port)),
            )
            given = {"GLOO_SOCKET_IFNAME": self.device, **(env or {})}
            started[host.name] = self.popen(host.name, [*launcher, *options, *argv], given, **how)
        return started

    def pids(self, host: str) -> list[int]:
        """Return the processes that run on a host."""
        return pids(self.network.namespace(self.host(host).name))

    # changes while ranks run

    def set_cpu(self, host: str, processors: float | None) -> None:
        """Change a host's share of the processor.

        Raises:
            LabError: there is no cpu controller here.

        """
        if self.host(host).name not in self.groups:
            raise LabError("a share of the processor needs the control groups' cpu controller, which is not mounted")
        self.groups[host].limit(processors)

    def set_rate(self, host: str, send_bytes_per_second: float | None, receive_bytes_per_second: float | None) -> None:
        """Change the rates of a host's link; None is unshaped."""
        self.network.shape(self.host(host).name, send_bytes_per_second, receive_bytes_per_second)

    def set_latency(self, host: str, latency_seconds: float, loss: float = 0.0) -> None:
        """Change latency and loss of a host that was laid out with latency or loss."""
        self.network.delay(host, latency_seconds, loss)

    def kill(self, host: str) -> None:
        """End all processes of a host at once, as a power cut does (its kernel still refuses connections)."""
        self._signal(host, signal.SIGKILL)

    def freeze(self, host: str) -> None:
        """Stop all processes of a host; connections stay open and nothing answers."""
        self._signal(host, signal.SIGSTOP)

    def thaw(self, host: str) -> None:
        """Let the processes of a frozen host go on."""
        self._signal(host, signal.SIGCONT)

    def cut(self, host: str) -> None:
        """Pull the cable of a host."""
        self.network.link(self.host(host).name, up=False)

    def mend(self, host: str) -> None:
        """Put the cable back."""
        self.network.link(self.host(host).name, up=True)

    def _signal(self, host: str, number: signal.Signals) -> None:
        for pid in self.pids(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def cluster(spec: Spec) -> Iterator[Cluster]:
    """Lay a cluster out for the time of the block; nothing of it is left afterwards.

    What earlier owners left behind when they were killed is swept first.

    Raises:
        LabUnavailableError: it cannot be laid out here; the message says why.
        LabError: a command failed.

    """
    reason = unavailable(spec)
    if reason is not None:
        raise LabUnavailableError(reason)
    sweep()
    standing = Cluster(new_name(), spec)
    try:
        standing.build()
        yield standing
    finally:
        standing.close()
