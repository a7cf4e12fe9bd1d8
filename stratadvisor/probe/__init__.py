"""What is looked at and measured on a node: one line per sub-probe, in the order they run.

A target is imported in a child process only, so that reading this table
costs nothing and no sub-probe can take the tool down.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor import plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One sub-probe."""

    title: str
    """What people read while it runs."""
    target: str
    """``package.module:function``."""
    requires: tuple[str, ...] = ()
    """Sub-probes whose results it starts from."""
    together: bool = False
    """Whether the ranks wait for each other."""
    limit_seconds: float
    """It is ended after this time, whatever it does."""
    budget_seconds: float = 0.0
    """Time a measurement aims at on a quiet machine; 0 for sub-probes that only read."""


_HOST = ("host_cpu", "host_memory", "nvml", "rocm")
_DEVICES = ("torch_devices",)

PROBES: dict[str, Probe] = {
    "host_cpu": Probe(title="processors", target="stratadvisor.probe.host_cpu:collect", limit_seconds=10),
    "host_memory": Probe(title="host memory", target="stratadvisor.probe.host_memory:collect", limit_seconds=10),
    "nics": Probe(title="network interfaces", target="stratadvisor.probe.nics:collect", limit_seconds=10),
    "software": Probe(title="software versions", target="stratadvisor.probe.software:collect", limit_seconds=15),
    "nvml": Probe(title="NVIDIA devices", target="stratadvisor.probe.nvml:collect", limit_seconds=20),
    "rocm": Probe(title="AMD devices", target="stratadvisor.probe.rocm:collect", limit_seconds=25),
    "torch_devices": Probe(
        title="devices torch can use",
        target="stratadvisor.probe.torch_devices:collect",
        requires=_HOST,
        limit_seconds=25,
    ),
    "compute": Probe(
        title="matrix products",
        target="stratadvisor.probe.compute:measure",
        requires=_DEVICES,
        limit_seconds=20,
        budget_seconds=4.0,
    ),
    "stability": Probe(
        title="steadiness",
        target="stratadvisor.probe.stability:measure",
        requires=_DEVICES,
        limit_seconds=20,
        budget_seconds=6.0,
    ),
    "collectives": Probe(
        title="all-reduce",
        target="stratadvisor.probe.collectives:measure",
        requires=_DEVICES,
        together=True,
        limit_seconds=25,
        budget_seconds=3.5,
    ),
    "memory_bandwidth": Probe(
        title="memory bandwidth",
        target="stratadvisor.probe.memory_bandwidth:measure",
        requires=_DEVICES,
        limit_seconds=15,
        budget_seconds=1.0,
    ),
    "host_link": Probe(
        title="host link",
        target="stratadvisor.probe.host_link:measure",
        requires=_DEVICES,
        limit_seconds=15,
        budget_seconds=0.5,
    ),
    "pairs": Probe(
        title="device pairs",
        target="stratadvisor.probe.pairs:measure",
        requires=_DEVICES,
        limit_seconds=20,
        budget_seconds=3.0,
    ),
    "data_feed": Probe(
        title="data loader",
        target="stratadvisor.probe.data_feed:measure",
        requires=_DEVICES,
        limit_seconds=20,
        budget_seconds=2.5,
    ),
    "storage": Probe(
        title="storage", target="stratadvisor.probe.storage:measure", limit_seconds=15, budget_seconds=2.5
    ),
}
"""Name -> sub-probe, in run order: what is least needed comes last, because it is left out when time runs short."""

PLUGGED: dict[str, Probe] = plugins.load("stratadvisor.probes", Probe, taken=tuple(PROBES))
"""Sub-probes of installed plug-ins: their functions return ``Verdict`` documents, which the profile shows."""
PROBES.update(PLUGGED)
