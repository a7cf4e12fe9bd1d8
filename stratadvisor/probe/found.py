"""What the measurements bring back: plain data, free of torch, so that the parent process can read it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """What torch says of one accelerator."""

    index: int
    name: str
    uuid: str
    """Empty where this torch does not tell."""
    compute_capability: tuple[int, int] | None
    memory_total_bytes: int
    memory_free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevices:
    """The accelerators, or why there are none."""

    kind: str
    """cuda, rocm or cpu."""
    devices: tuple[TorchDevice, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulRates:
    """One precision on one device; either rates or the reason why there are none."""

    by_edge: dict[int, float] = field(default_factory=dict)
    """Edge n -> FLOP per second."""
    reason: str = ""
    processor_share: float = 1.0
    """What the rates take to be had of a processor."""
    operation_seconds: float | None = None
    """Of a small operation on a CPU, forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """The best triad."""

    bytes_per_second: float
    array_bytes: int
    num_samples: int
    processor_share: float = 1.0
    """What the rate takes to be had of a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Bytes per second, one direction at a time."""

    host_to_device: float
    device_to_host: float
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRate:
    """The copy from ``device_a`` to ``device_b``."""

    device_a: int
    device_b: int
    peer_access: bool
    bytes_per_second: float
    intact: bool
    """Whether what arrived equals what was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTimes:
    """(message bytes, median seconds) of one all-reduce; the slowest rank counts in every repetition."""

    backend: str
    world_size: int
    points: tuple[tuple[int, float], ...]
    repetitions: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """The speeds between which a device changes."""

    speeds: tuple[tuple[float, float], ...]
    """(share of the time, speed over the mean speed), rising; they make up the whole time and the mean."""
    phase_seconds: float
    """Mean time until it changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """The work done in equal pieces of time."""

    variation: float
    """Standard deviation over mean."""
    num_pieces: int
    piece_seconds: float
    flops_per_second: float
    """Mean over the whole time of products of ``edge``, by the wall clock."""
    edge: int
    processor_share: float = 1.0
    """Share of the time in which the process had a processor; 1 for a GPU."""
    levels: Levels | None = None

    @property
    def watched_seconds(self) -> float:
        """Return how long it was watched."""
        return self.num_pieces * self.piece_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRates:
    """Time of one item in this process, and items per second by number of workers."""

    item_seconds: float
    item_cpu_seconds: float
    items_per_second_by_workers: dict[int, float] = field(default_factory=dict)
    item_bytes: int
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRates:
    """What a path gives; None with a reason where it was not measured."""

    path: str
    filesystem: str
    free_bytes: int
    read_bytes_per_second: float | None
    read_detail: str
    write_bytes_per_second: float | None
    write_detail: str
