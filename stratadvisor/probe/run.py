"""Probe this node: every sub-probe in a child process, within its own and the whole time limit."""

from __future__ import annotations

import os
import socket
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stratadvisor import plugins
from stratadvisor.errors import ProbeError, UsageError
from stratadvisor.probe import PLUGGED, PROBES, assemble, company
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.judge import judge
from stratadvisor.probe.looker import Looker, Progress, selection
from stratadvisor.probe.measuring import Measuring
from stratadvisor.probe.own_name import own_name
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.schema.base import unknown
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DeviceLink,
    DeviceProfile,
    HostMemoryProfile,
    NicProfile,
    NodeProfile,
    Observation,
    SoftwareProfile,
    Verdict,
)


def probe_node(
    *,
    only: tuple[str, ...] = (),
    skip: tuple[str, ...] = (),
    quick: bool = False,
    storage_path: Path | None = None,
    progress: Progress | None = None,
    time_limit_seconds: float = 60,
) -> ClusterProfile:
    """Return the profile of this node; a sub-probe that fails or hangs becomes an observation, the rest is complete.

    Raises:
        UsageError: ``only`` or ``skip`` name no sub-probe, or the time limit is not positive.
        ProbeError: the storage path does not exist, or no sub-probe at all came to a result.

    """
    names = selection(only, skip)
    if not 0 < time_limit_seconds < float("inf"):
        raise UsageError(f"the time limit must be a positive number of seconds, not {time_limit_seconds:g}")
    if storage_path is not None and not storage_path.exists():
        raise ProbeError(f"the storage path {storage_path} does not exist", hint="name a directory or a file to read")
    looker = Looker(names, time_limit_seconds, quick=quick, progress=progress)
    profile = _probe(looker, storage_path)
    if progress is not None:
        progress("done", 1.0)
    tried = [o for o in profile.observations if o.status not in ("skipped", "unsupported")]
    if tried and all(o.status != "ok" for o in tried):
        raise ProbeError(f"no sub-probe came to a result; {tried[0].probe}: {tried[0].reason}")
    return profile


def _probe(looker: Looker, storage_path: Path | None) -> ClusterProfile:
    """Read, measure, assemble, judge."""
    hostname = socket.gethostname() or "localhost"
    host = _Reading(looker)
    host.run()
    found = Measuring(
        looker, hostname, storage_path, cpu=host.cpu, memory=host.memory, devices=host.devices, links=host.links
    )
    measures = any(PROBES[name].budget_seconds and looker.wanted(name) for name in PROBES)
    beside = company.others() if measures else frozenset()
    found.run()
    beside |= company.others() if measures else frozenset()
    plugged = _plugged(looker)
    for name in PROBES:
        if not looker.wanted(name):
            looker.note(name, "skipped", "left out on request")
    intra = unknown(looker.reasons["collectives"] or "not measured")
    if found.sweeps:
        intra = found.sweeps[0].bus_bandwidth_bytes_per_second
    node = NodeProfile(
        hostname=hostname,
        devices=found.devices,
        links=found.links,
        cpu=host.cpu,
        host_memory=found.memory,
        nics=host.nics,
        storage=found.storage,
        data_feed=found.data_feed,
        software=host.software,
        network_bytes_per_second=assemble.network_reading(host.nics),
        intra_node_bytes_per_second=intra,
        speed_variation=found.variation,
    )
    profile = ClusterProfile(
        name=hostname,
        captured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        nodes=(node,),
        collectives=found.sweeps,
        observations=tuple(looker.observations),
    )
    measured = (*company.verdicts(hostname, beside), *found.verdicts)
    named = own_name(Path("/"), hostname, host.nics)
    verdicts = (*measured, *host_verdicts(node), *named, *judge(profile), *plugged)
    return profile.model_copy(update={"verdicts": verdicts})


def _plugged(looker: Looker) -> list[Verdict]:
    """Run the sub-probes of plug-ins, each in a child process of its own, and return what they found."""
    for plugin, reason in plugins.problems("stratadvisor.probes").items():
        looker.note(plugin.name, "failed", f"{plugin.title} is left out: {reason}")
    found: list[Verdict] = []
    for name in PLUGGED:
        with Crew(1) as crew:
            value = looker.look(name, crew, {0: {}}).get(0)
        if isinstance(value, (list, tuple)) and all(isinstance(v, Verdict) for v in value):
            found += value
        elif value is not None:
            looker.observations.pop()
            looker.note(name, "failed", f"returned a {type(value).__name__}, not a list of Verdict")
    return found


class _Reading:
    """What is read without measuring; its public attributes are the result."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self.cpu = CpuProfile()
        self.memory = HostMemoryProfile()
        self.nics: tuple[NicProfile, ...] = ()
        self.software = SoftwareProfile()
        self.devices: tuple[DeviceProfile, ...] = ()
        self.links: tuple[DeviceLink, ...] = ()

    def run(self) -> None:
        with Crew(1) as crew:
            environ = dict(os.environ)
            root = Path("/")
            self.cpu = self._one("host_cpu", crew, {"root": root, "environ": environ}) or CpuProfile()
            self.memory = self._one("host_memory", crew, {"root": root}) or HostMemoryProfile()
            self.nics = self._one("nics", crew, {"root": root}) or ()
            self.software = self._one("software", crew, {}) or SoftwareProfile()
            for name, settings in (("nvml", {"environ": environ}), ("rocm", {})):
                found = self._one(name, crew, settings)
                if found is not None:
                    devices, links, observations = found
                    first = len(self.devices)  # cards of two vendors in one node: the second vendor's come after
                    self.devices += tuple(d.model_copy(update={"index": d.index + first}) for d in devices)
                    self.links += tuple(
                        link.model_copy(update={"device_a": link.device_a + first, "device_b": link.device_b + first})
                        for link in links
                    )
                    self._replace_note(name, tuple(observations))

    def _one(self, name: str, crew: Crew, settings: dict[str, Any]) -> Any:
        return self._looker.look(name, crew, {0: settings}).get(0)

    def _replace_note(self, name: str, observations: tuple[Observation, ...]) -> None:
        """Let a sub-probe's own observations stand for the general one; each keeps the table's name."""
        if observations:
            seconds = self._looker.observations.pop().duration_seconds
            for observation in observations:
                self._looker.note(name, observation.status, observation.reason, seconds)
