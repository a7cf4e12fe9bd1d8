"""Hand-written planning clusters and outcomes, shared by the tests of strategies and planner."""

from __future__ import annotations

from stratadvisor.catalog import devices as device_catalog
from stratadvisor.schema.cluster import Cluster, Device, NodeClass
from stratadvisor.schema.plan import Plan, Provenance
from stratadvisor.schema.rules import RuleOutcome, Scalar
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB

GIGABIT = 1e9 / 8


def gpu(key: str, *, free_bytes: float | None = None, memory_known: bool = True) -> Device:
    """Return a catalog device; ``free_bytes`` None leaves its total."""
    spec = device_catalog.lookup(key)
    assert spec is not None
    return Device(
        name=key,
        catalog_key=spec.key,
        kind=spec.kind,
        architecture=spec.architecture,
        memory_total_bytes=spec.memory_bytes if memory_known else None,
        memory_free_bytes=free_bytes,
        peak_flops_per_second={str(k): v for k, v in spec.peak_flops_per_second.items()},
        measured_flops_per_second={},
        memory_bandwidth_bytes_per_second=spec.memory_bandwidth_bytes_per_second,
        host_link_bytes_per_second=spec.host_link_bytes_per_second,
        power_watts=spec.power_watts,
        compute_capability=spec.compute_capability,
        supports=frozenset(str(p) for p in spec.supports),
    )


def cpu(*, fp32: float = 5e10, bf16: float | None = None, memory_bytes: float = 8 * GIB) -> Device:
    """Return a CPU as a device, with measured rates."""
    rates = {"fp32": fp32} | ({} if bf16 is None else {"bf16": bf16})
    return Device(
        name="cpu",
        catalog_key=None,
        kind="cpu",
        architecture="cpu",
        memory_total_bytes=memory_bytes,
        memory_free_bytes=memory_bytes,
        peak_flops_per_second=dict(rates),
        measured_flops_per_second=rates,
        memory_bandwidth_bytes_per_second=1e10,
        host_link_bytes_per_second=None,
        power_watts=None,
        compute_capability=None,
        supports=frozenset(rates),
    )


def nodes(
    device: Device,
    *,
    count: int = 1,
    per_node: int = 8,
    intra: float | None = 3e11,
    network: float | None = None,
    host_bytes: float | None = 2048 * GIB,
    hostnames: tuple[str, ...] = (),
) -> NodeClass:
    """Return a class of ``count`` nodes named after its devices."""
    return NodeClass(
        name=f"{per_node}x{device.name}",
        num_nodes=count,
        devices_per_node=per_node,
        device=device,
        intra_node_bytes_per_second=intra if per_node > 1 else None,
        intra_node_latency_seconds=12e-6,
        network_bytes_per_second=network,
        cpu_cores=64,
        host_memory_bytes=host_bytes,
        hostnames=hostnames,
    )


def cluster(*classes: NodeClass, between: float | None = None, backend: str = "nccl") -> Cluster:
    """Return a cluster of the classes."""
    return Cluster(
        name="test",
        classes=classes,
        inter_node_bytes_per_second=between,
        inter_node_latency_seconds=25e-6,
        backend=backend,  # type: ignore[arg-type]
    )


def outcome(**settings: Scalar) -> RuleOutcome:
    """Return what a flowchart that sets just this would say."""
    return RuleOutcome(decisions=(), settings=settings)


PROVENANCE = Provenance(stratadvisor_version="0", profile_digest="p", workload_digest="w", ruleset_digest="r")


def plan_for(where: Cluster, workload: Workload, **settings: Scalar) -> Plan:
    """Return the plan that the planner makes with these settings."""
    from stratadvisor.planner import choose, enumerate_candidates

    candidates = enumerate_candidates(where, workload)
    return choose(where, workload, candidates, outcome(**settings), provenance=PROVENANCE)
