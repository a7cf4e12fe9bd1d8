"""Probe a cluster as a user does, one process on each host, and return the profile."""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from benchmarks.regret.forked import Child, fork
from lab.cluster import Cluster
from stratadvisor import pipeline, store
from stratadvisor.probe import crew, crew_member
from stratadvisor.schema.profile import ClusterProfile

SKIPPED = ("storage", "data_feed", "nvml", "rocm")
"""Disks and GPUs have no part in the lab."""


def _start_by_forking(self: Any) -> Any:
    """Stand in for ``crew.Member.start``: the same member, forked from a process that has torch already."""
    if self._connection is not None:
        return self._connection
    ours, theirs = Pipe()
    import os
    import tempfile

    self._errors = tempfile.TemporaryFile()  # noqa: SIM115
    parent = os.getpid()

    def serve() -> int:
        ours.close()
        sys.argv = ["member", str(theirs.fileno()), str(parent)]
        crew_member.main()
        return 0

    environment = crew.member_environment(self._threads, self._gloo_interface)
    self._process = fork(serve, None, environment, self._errors.fileno())
    theirs.close()
    self._connection, self._ready = ours, False
    return ours


def probe(cluster: Cluster, folder: Path, *, quick: bool, tick: Any, limit_seconds: float = 180.0) -> ClusterProfile:
    """Return the profile of all hosts; ``tick`` is called while waiting (it changes what changes).

    Raises:
        RuntimeError: it failed; the message has what the processes said.

    """
    path = folder / "cluster.json"
    path.unlink(missing_ok=True)
    hosts = cluster.spec.hosts
    children: list[tuple[Child, Path]] = []

    def one() -> int:
        crew.Member.start = _start_by_forking  # type: ignore[method-assign]
        found = pipeline.probe_job(skip=SKIPPED, quick=quick, time_limit_seconds=60.0)
        if found is not None:
            pipeline.write_profile(path, found)
        return 0

    for node_rank, host in enumerate(hosts):
        environment = {
            "RANK": str(node_rank),
            "WORLD_SIZE": str(len(hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(node_rank),
            "MASTER_ADDR": cluster.addresses[hosts[0].name],
            "MASTER_PORT": "29500",
        }
        log = folder / f"probe-{host.name}.log"
        children.append((fork(one, cluster.place(host.name), environment, log), log))
    end = time.monotonic() + limit_seconds
    try:
        while any(child.poll() is None for child, _ in children):
            if time.monotonic() > end or any(child.returncode for child, _ in children):
                break
            tick()
            time.sleep(0.05)
    finally:
        for child, _ in children:
            child.kill()
    if not path.exists() or any(child.returncode for child, _ in children):
        said = " | ".join(log.read_text(errors="replace").strip()[-400:] for _, log in children)
        raise RuntimeError(f"the probe failed: {said}")
    return store.read_profile(path)
