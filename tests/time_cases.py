"""Clusters, devices and shapes for tests of time formulas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stratadvisor.catalog import devices
from stratadvisor.costs.step import ClassWork
from stratadvisor.schema.cluster import Cluster, Device, NodeClass
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

LLAMA_7B = ModelShape(
    name="llama-2-7b",
    source="https://huggingface.co/meta-llama/Llama-2-7b",
    num_parameters=6_738_415_616,
    num_active_parameters=6_738_415_616,
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    ffn_hidden_size=11008,
    vocab_size=32000,
)
CPU = Device(
    name="cpu",
    catalog_key=None,
    kind="cpu",
    architecture="cpu",
    memory_total_bytes=16e9,
    memory_free_bytes=None,
    peak_flops_per_second={"fp32": 1e11},
    measured_flops_per_second={"fp32": 1e11},
    memory_bandwidth_bytes_per_second=2e10,
    host_link_bytes_per_second=None,
    power_watts=None,
    compute_capability=None,
    supports=frozenset({"fp32"}),
    origins={"memory_bandwidth_bytes_per_second": "measured"},
)


def gpu(name: str, **changes: Any) -> Device:
    """Return a device as the catalog has it."""
    spec = devices.lookup(name)
    assert spec is not None
    device = Device(
        name=spec.key,
        catalog_key=spec.key,
        kind=spec.kind,
        architecture=spec.architecture,
        memory_total_bytes=spec.memory_bytes,
        memory_free_bytes=None,
        peak_flops_per_second={str(k): v for k, v in spec.peak_flops_per_second.items()},
        measured_flops_per_second={},
        memory_bandwidth_bytes_per_second=spec.memory_bandwidth_bytes_per_second,
        host_link_bytes_per_second=spec.host_link_bytes_per_second,
        power_watts=spec.power_watts,
        compute_capability=spec.compute_capability,
        supports=frozenset(str(k) for k in spec.supports),
    )
    return replace(device, **changes)


def nodes(device: Device, num_nodes: int, devices_per_node: int, **changes: Any) -> NodeClass:
    """Return a class of nodes whose links were measured at round figures: 200 GB/s inside."""
    made = NodeClass(
        name=device.name,
        num_nodes=num_nodes,
        devices_per_node=devices_per_node,
        device=device,
        intra_node_bytes_per_second=200e9,
        intra_node_latency_seconds=0.0,
        network_bytes_per_second=None,
        cpu_cores=64.0,
        host_memory_bytes=1e12,
        origins={"intra_node_bytes_per_second": "measured"},
    )
    return replace(made, **changes)


def cluster(*classes: NodeClass, **changes: Any) -> Cluster:
    """Return a cluster whose network was measured at 100 GB/s per node, without latency."""
    made = Cluster(
        name="test",
        classes=classes,
        inter_node_bytes_per_second=100e9,
        inter_node_latency_seconds=0.0,
        backend="nccl",
        origins={"inter_node_bytes_per_second": "measured"},
    )
    return replace(made, **changes)


def work(node_class: NodeClass, micro_batch: int = 2, accumulation: int = 1) -> tuple[ClassWork, ...]:
    """Return equal work on every device of a class."""
    return (
        ClassWork(
            node_class=node_class,
            micro_batch_size=micro_batch,
            gradient_accumulation_steps=accumulation,
            batch_per_device=micro_batch * accumulation,
        ),
    )


def fsdp(world: int, **changes: Any) -> Layout:
    """Return a fully sharded layout."""
    return replace(Layout(engine="fsdp2", data_parallel_shard_degree=world, sharding="parameters"), **changes)


def ddp(world: int, **changes: Any) -> Layout:
    """Return a plain data-parallel layout."""
    return replace(Layout(engine="ddp", data_parallel_replicate_degree=world), **changes)
