"""Hand-made candidates and profiles for tests of facts: every number is given, none is estimated."""

from __future__ import annotations

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.derive.facts import derive_facts
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.layout import Candidate, ClassShare, Layout, MemoryEstimate, Span, TimeEstimate
from stratadvisor.schema.profile import ClusterProfile, NodeProfile
from stratadvisor.schema.workload import Workload

WORKLOAD = Workload(model=shape_for_size(1e9))


def exactly(value: float) -> Span:
    """Return a prediction without a band."""
    return Span(low=value, likely=value, high=value)


def candidate(
    strategy: str,
    *classes: NodeClass,
    run: float = 100.0,
    step: float = 1.0,
    exposed: float = 0.0,
    peak: float | tuple[float, ...] = 1e9,
    host: float = 0.0,
    batch: int | tuple[int, ...] = 8,
    micro: int = 1,
    compute: float = 1.0,
    flops: float = 1e15,
    feasible: bool = True,
    reason: str = "",
    variant: str = "hand-made",
    layout: Layout | None = None,
) -> Candidate:
    """Return a candidate over all nodes of the classes; tuples give one value per class."""
    peaks = peak if isinstance(peak, tuple) else (peak,) * len(classes)
    batches = batch if isinstance(batch, tuple) else (batch,) * len(classes)
    return Candidate(
        strategy=strategy,
        variant=variant,
        layout=layout or Layout(engine="ddp", micro_batch_size=micro, sequence_length=2048),
        shares=tuple(
            ClassShare(
                node_class=c.name,
                num_nodes=c.num_nodes,
                devices_per_node=c.devices_per_node,
                micro_batch_size=micro,
                gradient_accumulation_steps=-(-b // micro),
                batch_per_device=b,
                memory=MemoryEstimate(
                    terms_bytes={},
                    peak_bytes=Span(low=p / 2, likely=p * 0.9, high=p),
                    peak_phase="loss",
                    host_bytes_per_rank=host,
                ),
                compute_seconds=compute,
            )
            for c, p, b in zip(classes, peaks, batches, strict=True)
        ),
        time=TimeEstimate(
            terms_seconds={},
            step_seconds=exactly(step),
            communication_seconds=exposed * step,
            exposed_communication_seconds=exposed * step,
            model_flops_per_step=flops,
            tokens_per_step=1.0,
        ),
        global_batch_size=sum(c.num_devices * b for c, b in zip(classes, batches, strict=True)),
        run_seconds=exactly(run),
        feasible=feasible,
        infeasible_reason=reason,
    )


def profile_of(*nodes: NodeProfile) -> ClusterProfile:
    """Return a probed profile of the nodes."""
    return ClusterProfile(nodes=nodes or (NodeProfile(hostname="node0"),))


def facts_of(
    cluster: Cluster,
    *candidates: Candidate,
    workload: Workload = WORKLOAD,
    profile: ClusterProfile | None = None,
) -> dict[str, Fact]:
    """Return the facts of a cluster and candidates."""
    return derive_facts(profile or profile_of(), cluster, workload, candidates)
