"""The probe of a job's nodes, on each of them: meet, measure oneself, then measure together.

The first node conducts in a thread beside its own measurements; that thread only waits and writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stratadvisor.errors import ProbeError
from stratadvisor.probe import nics as interfaces
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.looker import QUICK_SHARE, Progress
from stratadvisor.probe.nodes.collective import Collectives
from stratadvisor.probe.nodes.conductor import Conductor, Found, Limits
from stratadvisor.probe.nodes.hub import Hub
from stratadvisor.probe.nodes.journal import Journal
from stratadvisor.probe.nodes.meeting import (
    is_loopback,
    listen_on,
    listening_address,
    name_is_loopback,
    raise_file_limit,
    reached_at,
)
from stratadvisor.probe.nodes.member import Member, SocketWire, call
from stratadvisor.probe.nodes.messages import Hello
from stratadvisor.probe.nodes.rounds import plan_rounds
from stratadvisor.probe.place import Place
from stratadvisor.schema.profile import ClusterProfile

STARTING_SECONDS = 60.0
"""Between the first and the last node's start, or the time limit of a node's measurements if that is longer."""
_TRANSFERS_SECONDS = 10.0
"""What all rounds together aim at, for few nodes."""
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.3, 1.5


def limits_for(
    num_nodes: int, time_limit_seconds: float, *, quick: bool, arrive_seconds: float | None = None
) -> Limits:
    """Return the deadlines: few nodes get longer transfers, which a busy machine disturbs less."""
    share = QUICK_SHARE if quick else 1.0
    rounds = max(1, len(plan_rounds(range(num_nodes))))
    transfer = min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, _TRANSFERS_SECONDS / (2 * rounds))) * share
    return Limits(
        arrive=max(STARTING_SECONDS, time_limit_seconds) if arrive_seconds is None else arrive_seconds,
        gather=time_limit_seconds + STARTING_SECONDS,
        round=20.0 + 10 * transfer,
        transfer=transfer,
        sweep=30.0,
    )


@dataclass(kw_only=True)
class Fleet:
    """One node's part in the probe."""

    where: Place
    time_limit_seconds: float
    quick: bool = False
    progress: Progress | None = None
    journal: Path | None = None
    """Where the profile will be written: what comes in lies beside it."""

    def __post_init__(self) -> None:
        self._nics = interfaces.collect()
        self._conductor: Conductor | None = None
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._journal = Journal(self.journal) if self.journal is not None else None
        self._hub: Hub | None = None
        self._kept: Found | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the first node."""
        return self.where.node_rank == 0

    def run(self, own: Callable[[], ClusterProfile]) -> Found | None:
        """Meet, let ``own`` measure this node, and take part; return what came together, on the first node only.

        Raises:
            ProbeError: the nodes could not meet, or this node was left out.

        """
        limits = limits_for(self.where.num_nodes, self.time_limit_seconds, quick=self.quick)
        address, port, key = self._start() if self.leads else self._find()
        channel = call(address, port, limits.arrive)
        here, interface = reached_at(channel, os.environ, self._nics)
        listener = socket.create_server(
            (here, 0), family=socket.AF_INET6 if ":" in here else socket.AF_INET, backlog=64
        )
        hello = Hello(
            rank=self.where.node_rank,
            hostname=(socket.gethostname() or "localhost")[:255],
            address=here,
            port=int(listener.getsockname()[1]),
            name_is_loopback=name_is_loopback(socket.gethostname()) and not is_loopback(here),
            key=key,
        )
        if self.leads:
            self._conduct(limits)
        member = Member(SocketWire(channel, f"{address}:{port}"), hello, listener, interface)
        try:
            profile = own()
            member.hand_over(profile.model_dump_json())
            if self.progress is not None:
                self.progress("waiting for the other nodes", None)
            with Collectives(profile, here, interface, quick=self.quick) as collectives:
                left_out = member.serve(collectives.do)
        except KeyboardInterrupt:
            self._kept = self._snapshot()  # before this node leaves, which the conductor would take for a loss
            raise
        finally:
            member.leave()
            with contextlib.suppress(OSError):
                channel.close()
        if left_out and not self.leads:
            raise ProbeError(left_out)
        return self._finish() if self.leads else None

    def so_far(self) -> Found | None:
        """Return what had come together when the probe was broken off; None where nothing had."""
        return self._kept if self._kept is not None and self._kept.profiles else None

    def _snapshot(self) -> Found | None:
        if self._conductor is None:
            return None
        found = self._conductor.found  # another thread adds to it
        return replace(
            found,
            hellos=dict(found.hellos),
            profiles=dict(found.profiles),
            links=list(found.links),
            lost=dict(found.lost),
            failed=list(found.failed),
        )

    def done(self) -> None:
        """The profile is written: what lay beside it is no longer needed."""
        if self._journal is not None:
            self._journal.remove()

    def _start(self) -> tuple[str, int, str]:
        """Listen, as the first node, and make known where."""
        raise_file_limit(self.where.num_nodes)
        address = listening_address(self.where.address, self.where.port, self._nics)
        listener = listen_on(address, 0 if self.where.store_is_running else self.where.port)
        port = int(listener.getsockname()[1])
        key = secrets.token_hex(8) if self.where.store_is_running else self.where.job
        self._hub = Hub(listener, key, self.where.num_nodes)
        if self.where.store_is_running:
            # others reach this host at the launcher's address, whatever the interface is called here
            self._publish(json.dumps({"address": address or self.where.address, "port": port, "key": key}))
        return address or "127.0.0.1", port, key

    def _find(self) -> tuple[str, int, str]:
        if not self.where.store_is_running:
            return self.where.address, self.where.port, self.where.job
        content = json.loads(self._publish(""))
        return str(content["address"]), int(content["port"]), str(content["key"])

    def _publish(self, value: str) -> str:
        wait_seconds = max(STARTING_SECONDS, self.time_limit_seconds)
        settings = {
            "address": self.where.address,
            "port": self.where.port,
            "value": value,
            "wait_seconds": wait_seconds,
        }
        with Crew(1, gloo_interface="") as crew:
            answer = crew.ask("stratadvisor.probe.exchange:rendezvous", {0: settings}, 2 * wait_seconds)[0]
        if answer.status != "ok":
            raise ProbeError(
                f"node {self.where.node_rank} could not meet the others at {self.where.address}:{self.where.port}:"
                f" {answer.reason}",
                hint="check that this address is reachable from every node and the port is open, or set MASTER_ADDR",
            )
        return str(answer.value)

    def _conduct(self, limits: Limits) -> None:
        assert self._hub is not None
        note = self._journal.note if self._journal is not None else None
        self._conductor = Conductor(self._hub, self.where.num_nodes, limits, note=note, progress=self.progress)
        self._thread = threading.Thread(target=self._conducting, daemon=True)
        self._thread.start()

    def _conducting(self) -> None:
        assert self._conductor is not None
        assert self._hub is not None
        try:
            self._conductor.run()
        except BaseException as problem:  # told by the main thread
            self._problem = problem
        finally:
            self._hub.close()

    def _finish(self) -> Found:
        assert self._thread is not None
        assert self._conductor is not None
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._conductor.found
