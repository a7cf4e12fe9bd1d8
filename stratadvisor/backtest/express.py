"""A measured run as the inputs of the time model, or the reason why it cannot be expressed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from stratadvisor.backtest.attempt import attempt, vetted_precision
from stratadvisor.backtest.layouts import NotExpressibleError, layout_of
from stratadvisor.backtest.rows import Row
from stratadvisor.backtest.shapes import shape_of
from stratadvisor.catalog import devices as device_catalog
from stratadvisor.costs.constants import PCIE_COLLECTIVE_SHARE
from stratadvisor.costs.fp8 import fp8_refusal
from stratadvisor.costs.step import ClassWork
from stratadvisor.schema.base import Origin
from stratadvisor.schema.cluster import Cluster, Device, NodeClass
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

NO_PEER_SHARE = 0.4
"""GeForce cards may not read each other's memory: what they exchange goes through the host's and crosses twice."""
_PCIE_LANE = 0.985e9
"""Bytes per second of one lane of PCIe 3.0; each generation doubles it."""
INTRA_LATENCY_SECONDS, INTER_LATENCY_SECONDS = 35e-6, 35e-6
_UNSTATED_MEMORY = {"A100": "A100-40GB-SXM", "V100-SXM": "V100-32GB-SXM"}
"""Names that leave the memory size open; the rates that time depends on are the same or nearly so."""
_USUAL_NETWORK = {"volta": 12.5e9, "ampere": 200e9, "hopper": 400e9, "blackwell": 400e9}
"""Bytes per second of a node of eight in the vendors' reference systems, where a run names no network."""


_NVLINK_RACK = 72
"""GB200 and GB300 come in racks whose NVLink joins so many (NVIDIA, GB200 NVL72)."""


@dataclass(frozen=True, slots=True)
class Expressed:
    """Inputs of ``estimate_step`` for one run."""

    row: Row
    shape: ModelShape
    layout: Layout
    cluster: Cluster
    work: tuple[ClassWork, ...]
    compression: str = "none"
    """Of gradients on the wire."""

    @property
    def sequences(self) -> int:
        """Sequences per optimizer step."""
        return self.layout.global_batch_size


def express(row: Row) -> Expressed | str:
    """Return the inputs for a run, or one sentence saying why there are none."""
    return attempt(_express, row)


def _express(row: Row) -> Expressed:
    precision = vetted_precision(row)
    shape = shape_of(row)
    if isinstance(shape, str):
        raise NotExpressibleError(shape)
    devices = row.count("n_gpus")
    if devices is None:
        raise NotExpressibleError("the number of devices is not stated")
    device = device_of(row.text("gpu_model"))
    if device is None:
        raise NotExpressibleError(f"no device {row.text('gpu_model')!r} in the catalog")
    if row.text("precision") == "tf32":
        device = _with_tf32(device)
    per_node = _joined(row, devices)
    layout = layout_of(row, precision, devices, per_node)
    refusal = fp8_refusal(device, layout.fp8_scaling)
    if refusal:
        raise NotExpressibleError(refusal)
    node_class = _node_class(row, device, devices, per_node)
    rate, origin = _network(row, device, per_node)
    cluster = Cluster(
        name=row.name,
        classes=(node_class,),
        inter_node_bytes_per_second=rate,
        inter_node_latency_seconds=INTER_LATENCY_SECONDS,
        backend="nccl",
        origins={"inter_node_bytes_per_second": origin},
    )
    work = ClassWork(
        node_class=node_class,
        micro_batch_size=layout.micro_batch_size,
        gradient_accumulation_steps=layout.gradient_accumulation_steps,
        batch_per_device=layout.micro_batch_size * layout.gradient_accumulation_steps,
    )
    compression = row.text("reduce") or "none"
    return Expressed(row=row, shape=shape, layout=layout, cluster=cluster, work=(work,), compression=compression)


def device_of(name: str) -> Device | None:
    """Return the catalog device of a run; ``-500W`` behind the name is a power limit."""
    limit = re.fullmatch(r"(.+)-([0-9]{2,4})W", name)
    plain = limit.group(1) if limit else name
    plain = re.sub(r"-HBM2e$", "", plain)
    spec = device_catalog.lookup(_UNSTATED_MEMORY.get(plain, plain))
    if spec is None and plain == "H100-96GB":
        spec = device_catalog.lookup("H100-80GB-SXM")  # the same chip with other memory
    if spec is None:
        return None
    bandwidth = spec.memory_bandwidth_bytes_per_second
    if name.endswith("HBM2e") or "HBM2e" in name:
        bandwidth = min(bandwidth, 2.4e12)
    return Device(
        name=spec.key,
        catalog_key=spec.key,
        kind=spec.kind,
        architecture=spec.architecture,
        memory_total_bytes=spec.memory_bytes,
        memory_free_bytes=None,
        peak_flops_per_second={str(p): rate for p, rate in spec.peak_flops_per_second.items()},
        measured_flops_per_second={},
        memory_bandwidth_bytes_per_second=bandwidth,
        host_link_bytes_per_second=spec.host_link_bytes_per_second,
        power_watts=float(limit.group(2)) if limit else spec.power_watts,
        compute_capability=spec.compute_capability,
        supports=frozenset(str(p) for p in spec.supports),
    )


def _joined(row: Row, devices: int) -> int:
    """Return how many devices one NVLink domain joins: those of a node, or of several where the note says so."""
    said = re.search(r"NVLink spans up to (\d+) GPUs", row.text("note"))
    rack = _NVLINK_RACK if row.text("gpu_model").startswith(("GB200", "GB300")) else None
    most = int(said[1]) if said else rack or row.count("gpus_per_node") or 8
    if most >= devices:
        return devices
    return max(d for d in range(1, most + 1) if devices % d == 0) if said or rack else most


def _with_tf32(device: Device) -> Device:
    """Return the device with fp32 products on its matrix units, as ``set_float32_matmul_precision("high")`` does."""
    peaks = dict(device.peak_flops_per_second)
    peaks["fp32"] = peaks.get("tf32", peaks["fp32"])
    return replace(device, peak_flops_per_second=peaks)


def _node_class(row: Row, device: Device, devices: int, per_node: int) -> NodeClass:
    spec = device_catalog.lookup(device.catalog_key or "")
    link = spec.link_bytes_per_second if spec else None
    origin: Origin = "catalog"
    staged = False
    if "PCIe" in row.text("intra_link") or link is None:
        consumer = re.match(r"(GeForce-)?(RTX-?)?[2345]0[6789]0", row.text("gpu_model"), re.IGNORECASE)
        link = _pcie_rate(row, device) * (NO_PEER_SHARE if consumer else PCIE_COLLECTIVE_SHARE)
        origin = "estimated"
        staged = consumer is not None
    return NodeClass(
        name=device.name,
        num_nodes=-(-devices // per_node),
        devices_per_node=per_node,
        device=device,
        intra_node_bytes_per_second=link,
        intra_node_latency_seconds=INTRA_LATENCY_SECONDS,
        network_bytes_per_second=None,
        cpu_cores=None,
        host_memory_bytes=None,
        nvlink=origin == "catalog",
        peer_access=not staged,
        origins={"intra_node_bytes_per_second": origin},
    )


def _pcie_rate(row: Row, device: Device) -> float:
    """Return bytes per second one way from texts like ``PCIe4 x16``; an old consumer board runs two cards at 3.0 x8.

    So does that of fsdp_qlora's two RTX 3090, which all runs of its section share.
    """
    found = re.search(r"PCIe ?([3-6])(?:\.0)? ?x([0-9]+)", row.text("intra_link"))
    if found is not None:
        return _PCIE_LANE * 2.0 ** (int(found.group(1)) - 3) * int(found.group(2))
    if "slow PCIe" in row.text("note") or (row.source == "fsdp-qlora-24gb" and "3090" in row.text("gpu_model")):
        return _PCIE_LANE * 8
    return device.host_link_bytes_per_second or 12e9


def _network(row: Row, device: Device, per_node: int) -> tuple[float | None, Origin]:
    """Return bytes per second of a node from texts like ``8x200Gb/s HDR IB`` or ``400Gb/s per GPU``."""
    text = row.text("inter_link")
    found = re.search(r"(?:([0-9]+)\s*x\s*)?([0-9]+)\s*Gb/s", text)
    if found is not None:
        ports = float(found.group(1) or 1)
        per_device = per_node if "per GPU" in text else 1
        return ports * per_device * float(found.group(2)) * 1e9 / 8, "declared"
    if "Omni-Path" in text:
        return 4 * 12.5e9, "declared"  # four ports of 100 Gb/s
    if "Slingshot-11" in text:
        return 4 * 25e9, "declared"  # one port of 200 Gb/s for each device of a node
    if text:
        return None, "unknown"
    usual = _USUAL_NETWORK.get(device.architecture)
    return (None, "unknown") if usual is None else (usual * per_node / 8, "declared")
