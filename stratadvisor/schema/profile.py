"""The cluster profile: what was found on each node and between nodes.

Hand-editable JSON, versioned, migrated on load.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stratadvisor.schema.base import LARGEST, Amount, Document, Many, NonNegative, PositiveInt, Rate, Reading, unknown

PROFILE_SCHEMA_VERSION = 2
"""2: a file leaves out what has its default, and a node may be ``like`` an earlier one. Defaults are part of it."""

MAX_COUNT = 10_000_000
"""Nodes of a cluster, ranks of a collective."""
PositiveNumber = Annotated[float, Field(ge=1e-9, le=LARGEST)]

DeviceKind = Literal["cuda", "rocm", "xpu", "cpu"]
LinkKind = Literal["nvlink", "nvswitch", "pcie_switch", "host_bridge", "numa", "system", "shared_memory", "unknown"]
NicKind = Literal["infiniband", "roce", "ethernet", "efa", "loopback", "virtual", "unknown"]
Backend = Literal["nccl", "gloo", "unknown"]
Scope = Literal["intra_node", "inter_node"]


class Observation(Document):
    """What one look at the machine came to."""

    probe: str
    """Name of the sub-probe, as in the table ``stratadvisor.probe.PROBES``."""
    status: Literal["ok", "unsupported", "denied", "timed_out", "failed", "skipped"]
    reason: str = ""
    """One sentence for people; empty when the status is ok."""
    duration_seconds: NonNegative = 0.0


class Verdict(Document):
    """A finding about something that is not as it should be, or is worth knowing."""

    level: Literal["info", "warning", "problem"]
    subject: str
    """What it is about: ``node3 GPU 2``, ``eth0``, ``/dev/shm``."""
    message: str
    """What was found, against what is normal."""
    advice: str = ""
    """The next thing to try."""


class MemoryUser(Document):
    """A process that holds device memory."""

    pid: int
    name: str = ""
    used_bytes: Amount = unknown("not reported")


class SpeedLevel(Document):
    """A speed that a device keeps for a while, and how much of the time it has it."""

    time_share: Annotated[float, Field(gt=0, le=1)]
    relative_speed: Annotated[float, Field(ge=1e-4, le=1e4)]
    """Of its mean speed, which is what its measured rates are."""


LEVEL_TOLERANCE = 0.02
"""A hand-edited file may round."""
LEAST_PHASES = 4
"""As many phases and it comes and goes; less may have happened once."""


class SpeedOverTime(Document):
    """A device that is fast at one time and slow at another, in phases that outlast a training step."""

    levels: Annotated[tuple[SpeedLevel, ...], Field(min_length=2, max_length=16)]
    phase_seconds: PositiveNumber
    """Mean time until the level changes."""
    watched_seconds: PositiveNumber
    """Over how long it was seen."""

    @model_validator(mode="after")
    def _whole(self) -> SpeedOverTime:
        shares = sum(level.time_share for level in self.levels)
        mean = sum(level.time_share * level.relative_speed for level in self.levels)
        if abs(shares - 1) > LEVEL_TOLERANCE or abs(mean - 1) > LEVEL_TOLERANCE:
            raise ValueError(
                f"time shares must add up to 1 (they give {shares:.3g}), and relative speeds, weighed by them, to 1"
                f" (they give {mean:.3g})"
            )
        return self

    @property
    def shares(self) -> tuple[tuple[float, float], ...]:
        """(share of the time, speed over the mean speed), without what a file rounded."""
        whole = sum(level.time_share for level in self.levels)
        mean = sum(level.time_share * level.relative_speed for level in self.levels) / whole
        return tuple((level.time_share / whole, level.relative_speed / mean) for level in self.levels)

    @property
    def in_words(self) -> str:
        """How the speed changes, in words."""
        fast = max(level.relative_speed for level in self.levels)
        slower = [level for level in self.levels if level.relative_speed < fast]
        often = self.watched_seconds >= LEAST_PHASES * self.phase_seconds
        parts = [f"at {level.relative_speed / fast:.0%} of its speed for {level.time_share:.0%}" for level in slower]
        verb = "runs" if often else "ran"
        when = f"in phases of {self.phase_seconds:.1f} s" if often else f"watched for {self.watched_seconds:.1f} s"
        if len(slower) > 1:
            verb, when = f"varies: it {verb}", f"watched for {self.watched_seconds:.1f} s"
        return f"{verb} {', '.join(parts)} of the time ({when})"


class DeviceProfile(Document):
    """One accelerator, or the CPU of a node where there is none."""

    index: int = Field(ge=0)
    """Position in the order that the training process sees (CUDA_VISIBLE_DEVICES applied)."""
    kind: DeviceKind
    name: str
    """As the driver spells it."""
    catalog_key: str | None = None
    """Entry of catalog/gpus.toml; None when the name matches none."""
    uuid: str = ""
    compute_capability: tuple[int, int] | None = None
    memory_total_bytes: Amount = unknown("not read")
    memory_free_bytes: Amount = unknown("not read")
    memory_users: Many[MemoryUser] = ()
    unified_memory: bool | None = None
    """Whether the device shares the host's memory (GH200/GB10 style or a CPU); None when unknown."""
    mig_enabled: bool | None = None
    mig_profile: str = ""
    virtual: bool | None = None
    """Whether it is a vGPU slice."""
    ecc_enabled: bool | None = None
    pci_bus_id: str = ""
    pcie_generation_max: int | None = None
    pcie_generation_current: int | None = None
    pcie_width_max: int | None = None
    pcie_width_current: int | None = None
    numa_node: int | None = None
    clock_sm_hertz: Amount = unknown("not read")
    clock_sm_max_hertz: Amount = unknown("not read")
    power_limit_watts: Amount = unknown("not read")
    power_default_watts: Amount = unknown("not read")
    temperature_celsius: Reading = unknown("not read")
    throttle_reasons: Many[str] = ()
    healthy: bool | None = None
    """False: the driver lost it or it failed a query it must answer; None: not established."""
    health_reason: str = ""
    matmul_flops_per_second: dict[str, Rate] = Field(default_factory=dict)
    """Best sustained rate of a large square product by precision (fp32, tf32, bf16, fp16, fp8)."""
    matmul_by_size: dict[str, dict[PositiveInt, PositiveNumber]] = Field(default_factory=dict)
    """Precision -> edge n of an n*n*n product -> FLOP per second, measured."""
    memory_bandwidth_bytes_per_second: Rate = unknown("not measured")
    host_to_device_bytes_per_second: Rate = unknown("not measured")
    device_to_host_bytes_per_second: Rate = unknown("not measured")
    operation_seconds: Amount = unknown("not measured")
    """A small operation on a CPU in eager mode, forward and backward: Python, dispatch, autograd."""
    speed_over_time: SpeedOverTime | None = None
    """Measured with NodeProfile.speed_variation; None: it keeps one speed, or nobody watched."""


class DeviceLink(Document):
    """How two devices of one node reach each other."""

    device_a: int
    device_b: int
    kind: LinkKind
    num_links: int | None = None
    """Number of NVLink connections, where the kind is nvlink or nvswitch."""
    peer_access: bool | None = None
    bandwidth_bytes_per_second: Rate = unknown("not measured")
    """One direction."""


class CpuProfile(Document):
    """The processors that this process may use."""

    model_name: str = ""
    usable_cores: Amount = unknown("not read")
    """Minimum of affinity, cgroup quota and Slurm's grant; may be a fraction."""
    limited_by: str = ""
    """What sets usable_cores: affinity, cgroup v1, cgroup v2, slurm, or empty for none."""
    logical_cpus: int | None = None
    physical_cores: int | None = None
    num_sockets: int | None = None
    num_numa_nodes: int | None = None


class HostMemoryProfile(Document):
    """Memory of the host that this process may use."""

    total_bytes: Amount = unknown("not read")
    available_bytes: Amount = unknown("not read")
    limit_bytes: Amount = unknown("no cgroup limit")
    """The cgroup's limit; unknown with the reason "no cgroup limit" where there is none."""
    limited_by: str = ""
    shared_memory_total_bytes: Amount = unknown("not read")
    shared_memory_free_bytes: Amount = unknown("not read")
    memlock_bytes: Amount = unknown("not read")
    """RLIMIT_MEMLOCK; unknown with the reason "unlimited" where there is no limit."""
    swap_total_bytes: Amount = unknown("not read")
    bandwidth_bytes_per_second: Rate = unknown("not measured")
    """Triad over all cores this process may use (STREAM's counting: three arrays moved)."""


class NicProfile(Document):
    """A network interface."""

    name: str
    kind: NicKind = "unknown"
    rate_bytes_per_second: Rate = unknown("not reported")
    """Line rate as sysfs states it: reported, never measured."""
    up: bool | None = None
    addresses: Many[str] = ()
    driver: str = ""
    numa_node: int | None = None
    rdma_device: str = ""
    rdma_usable: bool | None = None
    """Whether this process can open the RDMA device (a container often cannot); None without such a device."""


class StorageProfile(Document):
    """Read and write rate of a path."""

    path: str
    filesystem: str = ""
    free_bytes: Amount = unknown("not read")
    read_bytes_per_second: Rate = unknown("not measured")
    write_bytes_per_second: Rate = unknown("not measured")


class DataFeedProfile(Document):
    """What a data loader costs here: one item's time split into processor time and waiting."""

    item_seconds: Amount = unknown("not measured")
    item_cpu_seconds: Amount = unknown("not measured")
    items_per_second_by_workers: dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=0, le=LARGEST)]] = Field(
        default_factory=dict
    )
    item_bytes: int | None = None
    description: str = ""


class SweepPoint(Document):
    """One message size of a sweep."""

    message_bytes: Annotated[int, Field(ge=1, le=2**62)]
    seconds: float = Field(ge=1e-12, le=1e9)
    """Median time of one operation."""
    algorithm_bandwidth_bytes_per_second: PositiveNumber
    bus_bandwidth_bytes_per_second: PositiveNumber
    """algorithm bandwidth times 2(n-1)/n for all-reduce, (n-1)/n for all-gather and reduce-scatter, 1 for the rest."""


class CollectiveSweep(Document):
    """A collective timed over message sizes among ``world_size`` ranks, and its alpha-beta fit."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv"]
    scope: Scope
    backend: Backend
    world_size: int = Field(ge=2, le=MAX_COUNT)
    num_nodes: PositiveInt = Field(default=1, le=MAX_COUNT)
    interface: str = ""
    """Network interface that carried it on every node; empty where they differ or it is not known."""
    points: Many[SweepPoint] = ()
    latency_seconds: Amount = unknown("not fitted")
    """alpha: time of an empty operation."""
    bus_bandwidth_bytes_per_second: Rate = unknown("not fitted")
    """1/beta: what large messages reach."""


class SoftwareProfile(Document):
    """Versions by distribution or component name, read from metadata: python, torch, cuda, driver, nccl, deepspeed."""

    versions: dict[str, str] = Field(default_factory=dict)
    missing: Many[str] = ()
    """Components looked for and not found."""


class NodeProfile(Document):
    """One node, or ``count`` identical ones of a hand-written cluster."""

    hostname: str
    count: PositiveInt = Field(default=1, le=MAX_COUNT)
    devices: Many[DeviceProfile] = ()
    links: Many[DeviceLink] = ()
    cpu: CpuProfile = CpuProfile()
    host_memory: HostMemoryProfile = HostMemoryProfile()
    nics: Many[NicProfile] = ()
    storage: Many[StorageProfile] = ()
    data_feed: DataFeedProfile = Field(default_factory=DataFeedProfile)
    software: SoftwareProfile = Field(default_factory=SoftwareProfile)
    network_bytes_per_second: Rate = unknown("not measured")
    """What this node can send to others, all its interfaces together, one direction."""
    intra_node_bytes_per_second: Rate = unknown("not measured")
    """Bus bandwidth of collectives among this node's devices, one direction per device."""
    speed_variation: Amount = unknown("not measured")
    """Coefficient of variation of the work done in equal pieces of time (0.05: 5 %), of the least steady device."""

    @model_validator(mode="after")
    def _one_kind_per_index(self) -> NodeProfile:
        indexes = [device.index for device in self.devices]
        if len(set(indexes)) != len(indexes):
            raise ValueError(f"node {self.hostname!r} lists a device index twice")
        return self


class NodePair(Document):
    """The link between two nodes: a transfer in either direction, each timed by the end that received it."""

    a: str
    """Host name."""
    b: str
    a_to_b_bytes_per_second: PositiveNumber
    b_to_a_bytes_per_second: PositiveNumber
    latency_seconds: NonNegative = 0.0
    """Half of the shortest round trip."""
    interface_a: str = ""
    """The interface of a whose counters moved."""
    interface_b: str = ""


class Calibration(Document):
    """Measured over predicted of an earlier validation run, used by the next prediction of the same kind."""

    device: str
    """Catalog key or device name."""
    strategy: str
    time_ratio: float = Field(ge=1e-6, le=1e6)
    memory_ratio: float | None = Field(default=None, ge=1e-6, le=1e6)
    model: str = ""
    steps: PositiveInt = 1
    world_size: PositiveInt = 1


def _or_like_another(schema: dict[str, Any]) -> None:
    """Publish what ``schema.brief`` reads beside whole nodes."""
    name = {"type": "string", "description": "Host name of an earlier node that this one equals but for what it gives."}
    said = "Of an object it gives the entries that differ, of devices those of each in order, all else whole."
    other = {"type": "object", "description": said, "properties": {"like": name}, "required": ["like"]}
    schema["items"] = {"anyOf": [schema["items"], other]}


class ClusterProfile(Document):
    """Everything known about a cluster."""

    schema_version: int = PROFILE_SCHEMA_VERSION
    name: str = ""
    captured_at: str = ""
    """UTC, ISO 8601; empty for a hand-written cluster."""
    source: Literal["probe", "declared", "merged"] = "probe"
    nodes: Many[NodeProfile] = Field(min_length=1, json_schema_extra=_or_like_another)
    """Each whole, or as what makes it of an earlier one (``like``)."""
    collectives: Many[CollectiveSweep] = ()
    node_pairs: Many[NodePair] = ()
    """Links between nodes: all that were measured, or, of thousands, the slow ones."""
    observations: Many[Observation] = ()
    verdicts: Many[Verdict] = ()
    calibrations: Many[Calibration] = ()
