"""Where and what: a strategy on a selection of devices, the batch its devices share, the layout it starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Engine, Layout, MixedPrecision, Sharding
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.limits import obstacle
from stratadvisor.strategies.precision import choose_precision
from stratadvisor.strategies.run_length import base_batch
from stratadvisor.strategies.selections import Selection, nearest_sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where and what: one strategy on one selection of devices."""

    strategy: str
    cluster: Cluster
    """The selected part."""
    label: str
    """Name of the selection; empty for the whole cluster."""
    workload: Workload
    precision: MixedPrecision
    problem: str
    """Why this selection cannot train as asked, whatever its memory; empty where it can."""
    notes: tuple[str, ...] = ()

    @property
    def memory_known(self) -> bool:
        """Whether the memory of every device is known."""
        return all(c.device.usable_memory_bytes is not None for c in self.cluster.classes)


@dataclass(frozen=True, slots=True)
class Share:
    """A device's part of a step, for one class."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    batch_per_device: int


def site(strategy: str, selection: Selection, workload: Workload) -> Site:
    """Return the site of a strategy on a selection."""
    precision, problem = choose_precision(selection.cluster, workload)
    problem = obstacle(strategy, selection.cluster, workload) or problem
    return Site(
        strategy=strategy,
        cluster=selection.cluster,
        label=selection.name,
        workload=workload,
        precision=precision,
        problem=problem,
    )


def sharing_site(
    strategy: str, selection: Selection, workload: Workload, *, together: int = 1
) -> tuple[Site, int] | None:
    """Return the site and each device's batch where the devices share it equally.

    A batch that the user gave is never changed: where it does not divide, the largest part of a uniform selection that
    can share it takes part, and a note says what would use all devices. None where nothing fits the batch.
    ``together`` devices work on the same sequences (tensor, pipeline and context parallelism).
    """
    devices = selection.cluster.num_devices
    workers = devices // together
    if workers < 1:
        return None
    batch = shared_batch(workload, workers)
    if devices % together == 0 and batch % workers == 0:
        return site(strategy, selection, workload), batch // workers
    nearest = nearest_sharing(selection, batch, together=together)
    if nearest is None:
        return None
    at = site(strategy, nearest, workload)
    used = nearest.cluster.num_devices
    above = math.ceil(batch / workers) * workers
    many = f"{devices} devices" if together == 1 else f"{devices} devices, {together} at a time,"
    note = f"{many} cannot share {batch} sequences equally, {used} can; a batch of {above} would use all"
    if devices % together:
        note = f"{devices} devices are no multiple of {together}, {used} are"
    return replace(at, notes=(note,)), batch * together // used


def shared_batch(workload: Workload, devices: int) -> int:
    """Return the global batch: the user's, or the wished one rounded to what so many devices share equally."""
    wished = base_batch(workload)
    if workload.global_batch_size is not None:
        return wished
    return max(devices, round(wished / devices) * devices)


def layout_for(at: Site, engine: Engine, *, sharding: Sharding = "none", replicate: int = 1, shard: int = 1) -> Layout:
    """Return the layout that the variants of a strategy start from."""
    return Layout(
        engine=engine,
        data_parallel_replicate_degree=replicate,
        data_parallel_shard_degree=shard,
        sharding=sharding,
        sequence_length=at.workload.sequence_length,
        precision=at.precision,
        optimizer=at.workload.optimizer,
        method=at.workload.method,
        lora_rank=at.workload.lora_rank,
    )
