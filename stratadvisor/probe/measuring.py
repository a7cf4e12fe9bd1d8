"""The measurements of one node, in order: which devices, then each sub-probe on its lanes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratadvisor.probe import PROBES, assemble
from stratadvisor.probe.crew import Crew
from stratadvisor.probe.found import MatmulRates, PairRate, Steadiness, TorchDevices
from stratadvisor.probe.lanes import (
    Lane,
    accelerator_lanes,
    cpu_devices,
    cpu_lanes,
    threads_per_lane,
    torch_only_device,
    usable_cores,
)
from stratadvisor.probe.looker import Looker
from stratadvisor.schema.base import Reading, measured, unknown
from stratadvisor.schema.profile import (
    CollectiveSweep,
    CpuProfile,
    DataFeedProfile,
    DeviceLink,
    DeviceProfile,
    HostMemoryProfile,
    StorageProfile,
    Verdict,
)

_ACCELERATOR_STRIKES, _CPU_STRIKES = 1, 2
"""A device whose process hung or died this often is asked no more; a CPU rank may have met a busy machine once."""


class Measuring:
    """Measures a node whose devices, processors and memory have been read; its public attributes are the result."""

    def __init__(
        self,
        looker: Looker,
        hostname: str,
        storage_path: Path | None,
        *,
        cpu: CpuProfile,
        memory: HostMemoryProfile,
        devices: tuple[DeviceProfile, ...],
        links: tuple[DeviceLink, ...],
    ) -> None:
        self._looker = looker
        self._hostname = hostname
        self._storage_path = storage_path
        self._cpu = cpu
        self._lanes: tuple[Lane, ...] = ()
        self._no_lanes = ""
        self._steady: dict[int, Steadiness] = {}
        self.memory = memory
        self.devices = devices
        self.links = links
        self.storage: tuple[StorageProfile, ...] = ()
        self.data_feed = DataFeedProfile()
        self.sweeps: tuple[CollectiveSweep, ...] = ()
        self.variation = unknown("not measured")
        self.verdicts: list[Verdict] = []

    def run(self) -> None:
        """Measure what can be measured here."""
        if not self._looker.wanted("torch_devices"):
            self._storage_alone("skipped", "torch_devices was left out, and it says what there is to measure")
        elif importlib.util.find_spec("torch") is None:
            self.devices = self.devices or cpu_devices(self._cpu, self.memory)
            self._storage_alone("unsupported", "torch is not installed, and it does the measuring")
        else:
            self._measure()

    def _why(self, name: str) -> str:
        """Return why a device has no value of a sub-probe."""
        return self._looker.reasons[name] or "torch does not list this device"

    def _one(self, name: str, crew: Crew, settings: dict[str, Any]) -> Any:
        return self._looker.look(name, crew, {0: settings}).get(0)

    def _storage_alone(self, status: str, reason: str) -> None:
        with Crew(1) as crew:
            self._measure_storage(crew)
        for name, probe in PROBES.items():
            if self._looker.wanted(name) and "torch_devices" in (name, *probe.requires):
                self._looker.note(name, status, reason)

    def _measure(self) -> None:
        cores = usable_cores(self._cpu)
        expected = len(self.devices) or len(cpu_devices(self._cpu, self.memory))
        with Crew(1, threads_per_lane(cores, expected)) as crew, _rendezvous_folder() as folder:
            found: TorchDevices | None = self._one("torch_devices", crew, {})
            self._choose_lanes(found)
            crew.grow(len(self._lanes))
            threads = threads_per_lane(cores, len(self._lanes))
            rates = self._compute(crew, threads)
            self._note_compute(rates, threads)  # an interrupt now keeps what there is
            self._measure_stability(crew, threads)
            self._note_compute(rates, threads)
            self._measure_collectives(crew, threads, Path(folder) / "rendezvous")
            self._measure_memory(crew, threads, cores)
            self._measure_links(crew, threads)
            feed = self._one("data_feed", crew, {"threads": threads, "usable_cores": cores})
            self.data_feed = assemble.data_feed_profile(feed, self._why("data_feed"))
            self._measure_storage(crew)

    def _choose_lanes(self, found: TorchDevices | None) -> None:
        listed = found is not None and bool(found.devices)
        if not self.devices and found is not None and listed:
            self.devices = tuple(torch_only_device(device, found.kind) for device in found.devices)
        if self.devices and found is not None and listed:
            self._lanes = accelerator_lanes(self.devices, found)
            self._no_lanes = "torch lists none of the accelerators that the driver lists"
        elif self.devices:
            self._no_lanes = found.reason if found is not None else self._looker.reasons["torch_devices"]
            usable = sum(device.healthy is not False for device in self.devices)
            if found is not None and usable:
                self.verdicts.append(assemble.torch_verdict(self._hostname, usable, found.reason))
        else:
            self.devices = cpu_devices(self._cpu, self.memory)
            self._lanes = cpu_lanes(self.devices)

    def _members(self, crew: Crew) -> dict[int, Lane]:
        """Return the lanes still asked, by crew member."""
        return {
            member: lane
            for member, lane in enumerate(self._lanes)
            if crew.members[member].losses < (_CPU_STRIKES if lane.kind == "cpu" else _ACCELERATOR_STRIKES)
        }

    def _labels(self) -> dict[int, str]:
        return {member: f"device {lane.device_index}" for member, lane in enumerate(self._lanes)}

    def _lanes_or_note(self, name: str, crew: Crew) -> dict[int, Lane]:
        """Return the lanes for a sub-probe; where there are none, the observation says why."""
        members = self._members(crew)
        if not members and self._looker.wanted(name):
            self._looker.note(name, "unsupported", self._no_lanes or "no device answered the measurements before")
        return members

    @property
    def _together(self) -> str:
        return f"{len(self._lanes)} devices at once" if len(self._lanes) > 1 else "one device"

    def _update(self, changes: dict[int, DeviceProfile]) -> None:
        self.devices = tuple(changes.get(device.index, device) for device in self.devices)

    def _by_device(self, values: dict[int, Any]) -> dict[int, Any]:
        return {self._lanes[member].device_index: value for member, value in values.items()}

    def _compute(self, crew: Crew, threads: int) -> dict[int, dict[str, MatmulRates]]:
        members = self._lanes_or_note("compute", crew)
        settings = {
            m: {"device": lane.torch_name, "threads": threads, "kind": lane.kind, "capability": lane.capability}
            for m, lane in members.items()
        }
        return self._look("compute", crew, settings)

    def _note_compute(self, values: Mapping[int, dict[str, MatmulRates]], threads: int) -> None:
        how = (
            f"{threads} thread(s) each, {self._together}"
            if self._lanes and self._lanes[0].kind == "cpu"
            else self._together
        )
        reason = self._why("compute")
        self._update(
            {
                d.index: assemble.with_compute(d, values.get(d.index), how, reason, self._steady.get(d.index))
                for d in self.devices
            }
        )

    def _look(self, name: str, crew: Crew, settings: dict[int, Any], *, in_turn: bool = False) -> dict[int, Any]:
        """Return values by DeviceProfile.index."""
        if not settings:
            return {}
        return self._by_device(self._looker.look(name, crew, settings, labels=self._labels(), in_turn=in_turn))

    def _measure_collectives(self, crew: Crew, threads: int, store: Path) -> None:
        members = self._lanes_or_note("collectives", crew)
        settings = {
            member: {
                "device": lane.torch_name,
                "threads": threads,
                "rank": rank,
                "world_size": len(members),
                "store_file": str(store),
                "limit_seconds": PROBES["collectives"].limit_seconds,
                "memory_bytes": lane.memory_free_bytes,
            }
            for rank, (member, lane) in enumerate(members.items())
        }
        values = self._look("collectives", crew, settings)
        if values:
            self.sweeps = (assemble.sweep_profile(next(iter(values.values())), f"{len(members)} ranks of this node"),)

    def _measure_memory(self, crew: Crew, threads: int, cores: float) -> None:
        members = self._lanes_or_note("memory_bandwidth", crew)
        settings = {
            m: {"device": lane.torch_name, "threads": threads, "memory_bytes": lane.memory_free_bytes}
            for m, lane in members.items()
        }
        on_cpu = bool(self._lanes) and self._lanes[0].kind == "cpu"
        values = self._look("memory_bandwidth", crew, settings)
        reason = self._why("memory_bandwidth")
        self._update(
            {
                d.index: d.model_copy(
                    update={
                        "memory_bandwidth_bytes_per_second": assemble.memory_reading(
                            values.get(d.index), self._together, reason, self._steady.get(d.index)
                        )
                    }
                )
                for d in self.devices
            }
        )
        host: Reading
        if on_cpu:
            total = sum(d.memory_bandwidth_bytes_per_second.value or 0.0 for d in self.devices)
            complete = len(values) == len(self._lanes)
            host = measured(total, f"sum over {self._together}") if complete else unknown(reason)
        else:
            whole = {"device": "cpu", "threads": threads_per_lane(cores, 1)}
            available = self.memory.available_bytes.value
            alone = self._looker.look("memory_bandwidth", crew, {0: {**whole, "memory_bytes": available}})
            host = assemble.memory_reading(alone.get(0), "all cores", self._why("memory_bandwidth"))
        self.memory = self.memory.model_copy(update={"bandwidth_bytes_per_second": host})

    def _measure_links(self, crew: Crew, threads: int) -> None:
        members = self._lanes_or_note("host_link", crew)
        settings = {m: {"device": lane.torch_name, "threads": threads} for m, lane in members.items()}
        values = self._look("host_link", crew, settings, in_turn=True)
        reason = self._why("host_link")
        self._update(
            {d.index: assemble.with_host_link(d, values.get(d.index), reason) for d in self.devices if d.kind != "cpu"}
        )
        members = self._lanes_or_note("pairs", crew)
        if members:
            torch_index = {
                int(lane.torch_name.partition(":")[2]): lane.device_index
                for lane in members.values()
                if lane.kind != "cpu"
            }
            first = min(members)
            request = {first: {"devices": tuple(torch_index), "threads": threads}}
            rates: list[PairRate] = self._looker.look("pairs", crew, request).get(first, [])
            self.links = tuple(assemble.with_pairs(self.links, rates, torch_index))
            self.verdicts += assemble.pair_verdicts(rates, torch_index, self._hostname)

    def _measure_storage(self, crew: Crew) -> None:
        place = self._storage_path or _writable_place()
        rates = self._one("storage", crew, {"path": str(place)})
        if rates is not None:
            self.storage = (assemble.storage_profile(rates),)
        elif self._looker.wanted("storage"):
            nothing = unknown(self._why("storage"))
            self.storage = (
                StorageProfile(
                    path=str(place), free_bytes=nothing, read_bytes_per_second=nothing, write_bytes_per_second=nothing
                ),
            )

    def _measure_stability(self, crew: Crew, threads: int) -> None:
        members = self._lanes_or_note("stability", crew)
        settings = {m: {"device": lane.torch_name, "threads": threads} for m, lane in members.items()}
        self._steady = self._look("stability", crew, settings)
        self.variation = assemble.variation_reading(self._steady, self._why("stability"))


def _rendezvous_folder() -> contextlib.AbstractContextManager[str]:
    """Return a private folder; where nothing is writable any other, so that only the all-reduce fails, and says why."""
    try:
        return tempfile.TemporaryDirectory()
    except OSError:
        return contextlib.nullcontext(str(Path.cwd()))


def _writable_place() -> Path:
    """Return the working directory, where data and checkpoints tend to lie, or the temporary one."""
    here = Path.cwd()
    if os.access(here, os.W_OK):
        return here
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # none is writable: the sub-probe says so of this one
        return here
