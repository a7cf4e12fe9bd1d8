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


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """The best triad."""

    bytes_per_second: float
    array_bytes: int
    num_samples: int


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
class Steadiness:
    """Timings of equal pieces of work."""

    variation: float
    """Standard deviation over mean."""
    num_pieces: int
    piece_seconds: float
    """Median."""


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
