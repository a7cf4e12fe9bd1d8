"""What the tests of the case log share: clusters in a line, recommendations, parts of a profile, emitted files.

Units of the cases: GB = 1e9 bytes, GiB = 2^30; P parameters, N ranks. Mixed-precision Adam holds 16 bytes per parameter
(arXiv:1910.02054, section 3).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stratadvisor import pipeline
from stratadvisor.catalog import devices as device_catalog
from stratadvisor.costs.memory import estimate
from stratadvisor.derive import declared
from stratadvisor.emit.bundle import render_bundle
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DeviceLink,
    DeviceProfile,
    HostMemoryProfile,
    NicProfile,
    NodeProfile,
    SoftwareProfile,
)
from stratadvisor.schema.workload import ModelShape

GIB, MIB = 2**30, 2**20
GIGABYTE = 1e9
ADAM, ADAM_STATES, FULL_OFFLOAD = 16, 12, 18
"""Bytes per parameter: mixed-precision Adam; its fp32 copy and moments; everything on the host with fp32 gradients."""


def declare(gpus: str, *, host_gib: int = 512, nodes: int = 1, network: str = "", more: str = "") -> ClusterProfile:
    """Return the profile of a cluster file with one kind of node."""
    text = f'[[node]]\ncount = {nodes}\ngpus = "{gpus}"\nhost_memory = "{host_gib}GiB"\n{more}\n'
    if network:
        text = f'inter_node = "{network}"\n{text}'
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        path.write_text(text, encoding="utf-8")
        return declared.read_cluster_file(path)


@cache
def shape_of(model: str) -> ModelShape:
    """Return a size ("7B") or a name of the catalog."""
    if model[0].isdigit():
        return pipeline.resolve_model(model_size=model, model=None)
    return pipeline.resolve_model(model_size=None, model=model)


def plan_for(profile: ClusterProfile, model: str | ModelShape, *, strategy: str | None = None, **work: Any) -> Plan:
    """Return what ``recommend`` answers."""
    shape = shape_of(model) if isinstance(model, str) else model
    workload = pipeline.make_workload(shape, **work)
    return pipeline.recommend(profile, workload, strategy=strategy).plan


def needs(model: str | ModelShape, **layout: Any) -> MemoryEstimate:
    """Return the memory of one rank on a GPU."""
    shape = shape_of(model) if isinstance(model, str) else model
    return estimate(shape, Layout(**{"precision": "bf16", **layout}), device_kind="cuda", ranks_per_node=8)


def states_bytes(found: MemoryEstimate) -> float:
    """Return weights, gradients and optimizer states."""
    return sum(found.terms_bytes[term] for term in ("parameters", "gradients", "optimizer_states"))


def stays(plan: Plan) -> bool:
    """Whether nothing is offloaded."""
    return plan.memory.optimizer_offload == plan.memory.parameter_offload == "none"


def together(plan: Plan) -> int:
    """Return how many devices work on the same sequences."""
    degrees = plan.parallelism
    return degrees.tensor_parallel_degree * degrees.pipeline_parallel_degree * degrees.context_parallel_degree


def divided(plan: Plan) -> bool:
    """Whether no device holds all weights, and nothing is offloaded."""
    shards = plan.parallelism.data_parallel_shard_degree if plan.memory.sharding == "parameters" else 1
    return stays(plan) and shards * together(plan) > 1


def card(name: str, index: int, mib: float, **more: Any) -> DeviceProfile:
    """Return a healthy GPU as a probe reports it; 400 MiB are in use."""
    spec = device_catalog.lookup(name)
    fields: dict[str, Any] = {
        "index": index,
        "kind": "cuda",
        "name": name,
        "catalog_key": spec.key if spec else None,
        "compute_capability": spec.compute_capability if spec else None,
        "memory_total_bytes": reported(float(mib * MIB)),
        "memory_free_bytes": reported(float((mib - 400) * MIB)),
        "healthy": True,
        "virtual": False,
        "mig_enabled": False,
        "uuid": f"GPU-{index:08d}-1111-2222-3333-444444444444",
    }
    return DeviceProfile(**{**fields, **more})


def nic(name: str, *, bits_per_second: float = 200e9, address: str = "10.0.0.11", **more: Any) -> NicProfile:
    """Return an Ethernet interface that is up."""
    return NicProfile(
        **{
            "name": name,
            "kind": "ethernet",
            "rate_bytes_per_second": reported(bits_per_second / 8),
            "up": True,
            "addresses": (address,),
            **more,
        }
    )


LOOPBACK = NicProfile(name="lo", kind="loopback", up=True, addresses=("127.0.0.1",))
BRIDGE = NicProfile(name="docker0", kind="virtual", up=True, addresses=("172.17.0.1",))


def node(
    hostname: str,
    devices: list[DeviceProfile],
    *,
    host_gib: float = 512,
    cores: float = 64,
    nics: tuple[NicProfile, ...] = (),
    links: tuple[DeviceLink, ...] = (),
    versions: dict[str, str] | None = None,
    **more: Any,
) -> NodeProfile:
    """Return a node as a probe reports it."""
    memory = reported(float(host_gib * GIB))
    host = HostMemoryProfile(
        total_bytes=memory,
        available_bytes=memory,
        limit_bytes=unknown("no cgroup limit"),
        shared_memory_total_bytes=reported(float(64 * GIB)),
        shared_memory_free_bytes=reported(float(64 * GIB)),
    )
    fields: dict[str, Any] = {
        "hostname": hostname,
        "devices": tuple(devices),
        "cpu": CpuProfile(usable_cores=reported(float(cores))),
        "host_memory": host,
        "nics": nics,
        "links": links,
        "software": SoftwareProfile(versions=versions or {}),
    }
    return NodeProfile(**{**fields, **more})


def cluster_of(*nodes: NodeProfile, **more: Any) -> ClusterProfile:
    """Return a probed cluster."""
    return ClusterProfile(nodes=nodes, **more)


def files_of(plan: Plan, profile: ClusterProfile, *, beside: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the emitted files by path."""
    return {file.path: file.content for file in render_bundle(plan, profile, beside=beside)}
