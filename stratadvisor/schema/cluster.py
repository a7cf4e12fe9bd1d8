"""The planning view of a cluster: identical nodes grouped into classes, plain numbers, unknowns as None.

Built by ``stratadvisor.derive.cluster.planning_cluster`` from a profile; costs, strategies and the planner
see only this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from stratadvisor.schema.base import Origin
from stratadvisor.schema.profile import DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator of a node class (all devices of a class are alike)."""

    name: str
    catalog_key: str | None
    kind: DeviceKind
    architecture: str
    """ampere, hopper, volta, ..., cpu, or "unknown"."""
    memory_total_bytes: float | None
    memory_free_bytes: float | None
    """What a training process can use now; None when unknown. Planning falls back to total when free is unknown."""
    peak_flops_per_second: dict[str, float]
    """Precision -> dense peak (catalog) for a GPU; for a CPU the measured rate stands here too."""
    measured_flops_per_second: dict[str, float]
    """Precision -> best measured rate of a large product; empty when not measured."""
    memory_bandwidth_bytes_per_second: float | None
    host_link_bytes_per_second: float | None
    """PCIe or NVLink-C2C, one direction."""
    power_watts: float | None
    compute_capability: tuple[int, int] | None
    supports: frozenset[str]
    """Precisions that run on matrix units here; always has fp32."""
    matmul_by_size: dict[str, dict[int, float]] = field(default_factory=dict)
    operation_seconds: float | None = None
    """Of a small operation on a CPU in eager mode, forward and backward; None: not measured."""
    origins: dict[str, Origin] = field(default_factory=dict)
    """Field name -> origin of its value."""

    @property
    def usable_memory_bytes(self) -> float | None:
        """Free memory where known, else total."""
        return self.memory_free_bytes if self.memory_free_bytes is not None else self.memory_total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClass:
    """``num_nodes`` alike nodes."""

    name: str
    num_nodes: int
    devices_per_node: int
    device: Device
    intra_node_bytes_per_second: float | None
    """Bus bandwidth of collectives inside a node, per device, one direction."""
    intra_node_latency_seconds: float
    network_bytes_per_second: float | None
    """What a node can send to others, one direction; None when unknown."""
    cpu_cores: float | None
    processor_share: float = 1.0
    """What a process gets of a processor, as seen on the fastest node with the same one; 1 where nothing says less."""
    host_memory_bytes: float | None
    """Available to training on one node."""
    host_memory_bandwidth_bytes_per_second: float | None = None
    shared_memory_bytes: float | None = None
    nvlink: bool | None = None
    peer_access: bool = True
    """Whether its devices reach each other's memory; where not, collectives are staged in the host's."""
    speed_variation: float | None = None
    speed_levels: tuple[tuple[float, float], ...] = ()
    """(share of the time, speed over the mean speed) of a node whose speed changes in phases; empty: it keeps one."""
    speed_phase_seconds: float = 0.0
    """Mean time until the level changes."""
    storage_read_bytes_per_second: float | None = None
    data_item_seconds: float | None = None
    hostnames: tuple[str, ...] = ()
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        """Devices of the class, over all its nodes."""
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Node classes and the network between nodes."""

    name: str
    classes: tuple[NodeClass, ...]
    inter_node_bytes_per_second: float | None
    """Bus bandwidth of collectives between nodes, per node, one direction: the slowest node that takes part sets it."""
    inter_node_latency_seconds: float
    backend: Literal["nccl", "gloo"]
    intra_node_sweep: tuple[tuple[float, float], ...] = ()
    """(message bytes, seconds) of a measured all-reduce inside a node, over intra_node_sweep_ranks ranks."""
    intra_node_sweep_ranks: int = 0
    inter_node_sweep: tuple[tuple[float, float], ...] = ()
    inter_node_sweep_ranks: int = 0
    calibration_time_ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    """(device name or catalog key, strategy) -> measured over predicted."""
    calibration_memory_ratios: dict[tuple[str, str], float] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """All nodes."""
        return sum(c.num_nodes for c in self.classes)

    @property
    def num_devices(self) -> int:
        """All devices."""
        return sum(c.num_devices for c in self.classes)

    def only(self, names: tuple[str, ...], max_nodes: dict[str, int] | None = None) -> Cluster:
        """Return the cluster of the named classes, with at most ``max_nodes`` nodes of each."""
        limits = max_nodes or {}
        kept = tuple(
            replace(c, num_nodes=min(c.num_nodes, limits.get(c.name, c.num_nodes)))
            for c in self.classes
            if c.name in names
        )
        return replace(self, classes=kept)
