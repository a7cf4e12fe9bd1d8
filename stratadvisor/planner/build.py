"""Candidate -> Plan: every field filled, every identity proven by the document itself."""

from __future__ import annotations

from stratadvisor.planner import ranking
from stratadvisor.planner.predict import predict
from stratadvisor.planner.request import Request, in_family, uneven
from stratadvisor.schema.base import Origin
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Candidate, ClassShare
from stratadvisor.schema.plan import (
    Alternative,
    BatchPlan,
    Flip,
    Interval,
    MemoryPlan,
    NodeGroup,
    Parallelism,
    Plan,
    Provenance,
    SynchronizationPlan,
)
from stratadvisor.schema.rules import RuleOutcome
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES, run_length
from stratadvisor.strategies.common import UNKNOWN_MEMORY
from stratadvisor.strategies.selections import part_used
from stratadvisor.units import format_bytes, format_count

LARGEST_PUBLISHED_BATCH_TOKENS = 16_777_216
"""Llama 3 405B at its largest (arXiv:2407.21783, section 3.4)."""
IDLE_SHARE = 0.2
"""Devices that wait longer than this share of the slowest ones' work are mentioned."""
YEAR_SECONDS = 365.25 * 86400
_MODES = {
    "hierarchical": "hierarchical",
    "local_sgd": "local_sgd",
    "federated": "local_sgd",
    "asynchronous": "asynchronous",
}
_STAGES = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}


def build_plan(
    chosen: Candidate,
    cluster: Cluster,
    workload: Workload,
    request: Request,
    outcome: RuleOutcome,
    *,
    alternatives: tuple[Alternative, ...],
    flips: tuple[Flip, ...],
    warnings: tuple[str, ...],
    assumptions: tuple[str, ...],
    provenance: Provenance,
) -> Plan:
    """Return the complete plan of the chosen candidate."""
    strategy = STRATEGIES[chosen.strategy]
    layout = chosen.layout
    part = part_used(cluster, chosen.shares)
    open_questions = tuple(n for n in chosen.notes if n.startswith(UNKNOWN_MEMORY))
    said = (
        *assumptions,
        *run_length.assumptions(workload, chosen.global_batch_size),
        *chosen.time.assumptions,
        *(n for n in chosen.notes if n not in open_questions),
    )
    settings = {key: value for key, value in chosen.settings.items() if key != "compression"}
    if not request.pin_memory:
        settings["pin_memory"] = False
    return Plan(
        strategy=chosen.strategy,
        family=_family(chosen, request),
        variant=chosen.variant,
        target=strategy.target,
        backend=cluster.backend,
        device_kind=part.classes[0].device.kind,
        workload=workload,
        precision=layout.precision,
        parallelism=Parallelism(
            world_size=chosen.num_devices,
            data_parallel_replicate_degree=layout.data_parallel_replicate_degree,
            data_parallel_shard_degree=layout.data_parallel_shard_degree,
            tensor_parallel_degree=layout.tensor_parallel_degree,
            pipeline_parallel_degree=layout.pipeline_parallel_degree,
            context_parallel_degree=layout.context_parallel_degree,
            expert_parallel_degree=layout.expert_parallel_degree,
            virtual_pipeline_chunks=layout.virtual_pipeline_chunks,
            sequence_parallel=layout.tensor_parallel_degree > 1 and layout.sequence_parallel,
        ),
        groups=tuple(_group(share, c) for share, c in zip(chosen.shares, part.classes, strict=True)),
        batch=BatchPlan(
            global_batch_size=chosen.global_batch_size,
            sequence_length=workload.sequence_length,
            micro_batch_size=chosen.shares[0].micro_batch_size,
            gradient_accumulation_steps=chosen.shares[0].gradient_accumulation_steps,
            uneven=uneven(chosen),
        ),
        memory=MemoryPlan(
            sharding=layout.sharding,
            zero_stage=_STAGES[layout.sharding] if layout.engine == "deepspeed" else 0,
            activation_checkpointing=layout.activation_checkpointing,
            optimizer_offload=layout.optimizer_offload,
            parameter_offload=layout.parameter_offload,
        ),
        synchronization=SynchronizationPlan(
            mode=_MODES.get(strategy.family, "synchronous"),
            sync_interval_steps=layout.sync_interval_steps,
            max_staleness_steps=int(chosen.settings.get("staleness_bound", 0)),
            compression=str(chosen.settings.get("compression", "none")),
        ),
        data_loader_workers=request.data_loader_workers,
        compile_model=layout.compiled and layout.engine != "megatron",  # whose kernels are fused by hand
        environment=dict(sorted(request.environment.items())),
        settings=settings,
        predicted=predict(chosen, part, workload),
        decisions=outcome.decisions,
        alternatives=alternatives,
        flips=flips,
        warnings=_unique((*warnings, *open_questions, *_own_warnings(chosen, part, workload))),
        assumptions=_unique(said),
        provenance=provenance,
    )


def _family(chosen: Candidate, request: Request) -> str:
    own = STRATEGIES[chosen.strategy].family
    return request.family if request.family is not None and in_family(chosen, request.family) else own


def _group(share: ClassShare, node_class: NodeClass) -> NodeGroup:
    device = node_class.device
    field = "memory_free_bytes" if device.memory_free_bytes is not None else "memory_total_bytes"
    origin: Origin = "unknown" if device.usable_memory_bytes is None else device.origins.get(field, "declared")
    peak = share.memory.peak_bytes
    return NodeGroup(
        node_class=share.node_class,
        num_nodes=share.num_nodes,
        devices_per_node=share.devices_per_node,
        device_name=device.name,
        micro_batch_size=share.micro_batch_size,
        gradient_accumulation_steps=share.gradient_accumulation_steps,
        batch_per_device=share.batch_per_device,
        hostnames=node_class.hostnames,
        memory_terms_bytes=share.memory.terms_bytes,
        memory_peak_bytes=Interval(low=peak.low, likely=peak.likely, high=peak.high),
        memory_available_bytes=device.usable_memory_bytes,
        memory_available_origin=origin,
        host_bytes_per_rank=share.memory.host_bytes_per_rank,
        compute_seconds=share.compute_seconds,
    )


def _own_warnings(chosen: Candidate, part: Cluster, workload: Workload) -> list[str]:
    said: list[str] = []
    for share, node_class in zip(chosen.shares, part.classes, strict=True):
        device, peak = node_class.device, share.memory.peak_bytes
        available = device.usable_memory_bytes
        if available is not None and peak.high > ranking.MARGINAL_SHARE * available:
            said.append(
                f"memory is marginal on {device.name}: up to {format_bytes(peak.high)} of {format_bytes(available)}"
            )
        host = share.memory.host_bytes_per_rank * share.devices_per_node
        limit = node_class.host_memory_bytes
        if device.kind != "cpu" and limit is not None and host > limit:
            said.append(
                f"{share.devices_per_node} processes on a node of {share.node_class} may need {format_bytes(host)}"
                f" of the {format_bytes(limit)} host memory"
            )
        if ranking.offloads(chosen) and limit is None:
            said.append(
                f"host memory of {share.node_class} unknown: whether the {format_bytes(host)} offloaded fit is open"
            )
    if chosen.layout.engine not in ("local", "async"):
        for share in chosen.shares:
            waits = 1 - share.compute_seconds / max(s.compute_seconds for s in chosen.shares)
            if waits > IDLE_SHARE:
                said.append(f"devices of {share.node_class} wait {waits:.0%} of each step for slower ones")
    if chosen.run_seconds.likely > YEAR_SECONDS:
        years = chosen.run_seconds.likely / YEAR_SECONDS
        said.append(f"the run would take {years:.3g} years: fewer tokens, a smaller model or more devices are needed")
    tokens = chosen.global_batch_size * workload.sequence_length
    if workload.model.is_transformer and tokens > LARGEST_PUBLISHED_BATCH_TOKENS:
        said.append(
            f"a step takes {format_count(tokens)} tokens, more than any published run (16M, arXiv:2407.21783):"
            " so many devices can only share it this way at the price of more tokens to the same loss"
        )
    return said


def _unique(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
