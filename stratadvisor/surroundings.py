"""What surrounds the steps of a plan: loading and saving the model, disks, mixed nodes, what offload could be spared.

A plan that trains and then cannot save is no plan; nothing here changes which strategy is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor import planner
from stratadvisor.costs.host import PROCESS_BYTES
from stratadvisor.costs.parameters import count_parameters
from stratadvisor.costs.states import recipe
from stratadvisor.derive import cluster as derive_cluster
from stratadvisor.planner import ranking
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.units import GIB, format_bytes, format_count

WHOLE_WEIGHT_BYTES = 4.0
"""A checkpoint that is read without naming a type becomes fp32 (transformers ``from_pretrained``)."""
SAVED_WEIGHT_BYTES = 2.0
"""DeepSpeed gathers 16-bit weights on rank 0 (``stage3_gather_16bit_weights_on_model_save``)."""
LAST_STAGE = 3
CHECKPOINTS_AT_ONCE = 3
"""The training program keeps two and writes the third before it deletes one."""
WORTH_SAYING_BYTES = 10 * GIB
FASTER, SLOWER = 0.98, 1.02


def consider(plan: Plan, profile: ClusterProfile) -> Plan:
    """Return the plan with what loading, saving and mixed nodes ask for, as settings, warnings and assumptions."""
    nodes = _nodes(plan, profile)
    settings = dict(plan.settings)
    loading = list(_loading(plan, nodes))
    pretrained = plan.workload.method != "full"
    warnings = [*plan.warnings, *(loading if pretrained else ()), *_disks(plan, nodes), *_offload(plan, profile)]
    warnings += _exact(plan, profile)
    kept_apart = _saving(plan, nodes)
    if kept_apart:
        settings["gather_on_save"] = False
        warnings.append(kept_apart)
    warnings += _mixed(plan, profile)
    assumptions = [*plan.assumptions, *(() if pretrained else loading), *_parts(plan)]
    return plan.model_copy(
        update={
            "settings": settings,
            "warnings": tuple(dict.fromkeys(warnings)),
            "assumptions": tuple(dict.fromkeys(assumptions)),
        }
    )


def _nodes(plan: Plan, profile: ClusterProfile) -> list[NodeProfile]:
    """Return the nodes that take part, as far as the plan names them; else all."""
    names = {name for group in plan.groups for name in group.hostnames}
    return [n for n in profile.nodes if n.hostname in names] or list(profile.nodes)


def _host_bytes(nodes: list[NodeProfile]) -> float | None:
    values = [(n.host_memory.available_bytes.value or n.host_memory.limit_bytes.value) for n in nodes]
    return None if not values or any(v is None for v in values) else min(v for v in values if v is not None)


def _loading(plan: Plan, nodes: list[NodeProfile]) -> Iterator[str]:
    """Every process that reads the whole checkpoint holds it in host memory at the same time (transformers 25107)."""
    host, copies = _host_bytes(nodes), max(g.devices_per_node for g in plan.groups)
    one = WHOLE_WEIGHT_BYTES * count_parameters(plan.workload.model).total
    if plan.device_kind == "cpu" or host is None or copies * one <= host:
        return
    yield (
        f"a program whose {copies} processes on a node each read a whole fp32 checkpoint holds"
        f" {format_bytes(copies * one)} of the {format_bytes(host)} host memory: read it in one process and"
        f" hand the parts out ({format_bytes(one)}; fsdp_cpu_ram_efficient_loading of Accelerate), or in 16 bit. The"
        " bundle's own program makes one parameter at a time"
    )


def _saving(plan: Plan, nodes: list[NodeProfile]) -> str:
    """Return why weights are saved in shards only: rank 0 would hold all of them (transformers issue 12587)."""
    host = _host_bytes(nodes)
    if plan.memory.zero_stage != LAST_STAGE or plan.device_kind == "cpu" or host is None:
        return ""
    held = max(g.host_bytes_per_rank * g.devices_per_node for g in plan.groups) or PROCESS_BYTES
    gathered = SAVED_WEIGHT_BYTES * count_parameters(plan.workload.model).total
    if held + gathered <= host:
        return ""
    return (
        f"the whole 16-bit weights are {format_bytes(gathered)}, and rank 0 has {format_bytes(max(0.0, host - held))}"
        f" of {format_bytes(host)} host memory left: they are saved in shards and merged elsewhere (zero_to_fp32.py)"
    )


def checkpoint_bytes(plan: Plan) -> float:
    """Return the size of one checkpoint of a full training: weights, their fp32 copy, optimizer states."""
    model = plan.workload.model
    deepspeed = plan.memory.zero_stage > 0
    layout = Layout(
        engine="deepspeed" if deepspeed else "fsdp2" if plan.memory.sharding == "parameters" else "ddp",
        precision=plan.precision,
        optimizer=plan.workload.optimizer,
        sharding=plan.memory.sharding,
    )
    counts = count_parameters(model)
    kinds = recipe(layout, counts)
    return (kinds.weight + kinds.states) * counts.total


def _disks(plan: Plan, nodes: list[NodeProfile]) -> Iterator[str]:
    """Optimizer states are most of a checkpoint (DeepSpeed issue 6598)."""
    free = [s.free_bytes.value for n in nodes for s in n.storage if s.free_bytes.value is not None]
    if plan.workload.method != "full" or not free:
        return
    one = checkpoint_bytes(plan)
    if CHECKPOINTS_AT_ONCE * one > min(free):
        yield (
            f"a checkpoint with optimizer states takes {format_bytes(one)}, and {CHECKPOINTS_AT_ONCE} at a time"
            f" {format_bytes(CHECKPOINTS_AT_ONCE * one)} of the {format_bytes(min(free))} free on the disk: save less"
            f" often to another disk, or weights alone ({format_bytes(2.0 * plan.workload.model.num_parameters)})"
        )


def _parts(plan: Plan) -> Iterator[str]:
    model, one = plan.workload.model, checkpoint_bytes(plan)
    if plan.workload.method == "full" and one >= WORTH_SAYING_BYTES:
        yield f"a checkpoint takes {format_bytes(one)} of disk, optimizer states included"
    frozen = plan.workload.frozen_parameters
    if frozen:
        yield (
            f"frozen models of {format_count(frozen)} parameters run beside the trained one, in 16 bit; the two"
            " sequences of a DPO pair count as two of the batch. What they say of fixed data can be computed beforehand"
            " (precompute_ref_log_probs in TRL), which needs none of this. The bundle's own program has no such model:"
            " build it in build_model"
        )
    if model.num_vision_parameters:
        yield (
            f"{format_count(model.num_vision_parameters)} parameters of a vision tower are counted beside the"
            f" {format_count(model.num_parameters)} of the text model; its activations are not"
        )
    if model.num_experts and plan.memory.zero_stage == LAST_STAGE:
        yield (
            "experts are stacked in one parameter in the bundle's model; a model with a module for each expert needs"
            " deepspeed.utils.set_z3_leaf_modules for its expert layer, or ZeRO-3 waits forever for an unused one"
        )


def _offload(plan: Plan, profile: ClusterProfile) -> Iterator[str]:
    """Say what offload could be spared: it costs seconds in every optimizer step."""
    if plan.memory.optimizer_offload == "none" and plan.memory.parameter_offload == "none":
        return
    terms = plan.predicted.time_terms_seconds
    spent = terms.get("optimizer", 0.0) + terms.get("offload", 0.0)
    cluster = derive_cluster.planning_cluster(profile)
    own, least = _without_offload(cluster, plan.workload), None
    if own is None and plan.workload.global_batch_size is None:
        fewest = plan.workload.model_copy(update={"global_batch_size": cluster.num_devices})
        least = _without_offload(cluster, fewest)
    if own is not None:
        ratio = own.time.step_seconds.likely / plan.predicted.step_seconds.likely
        yield (
            f"it fits without offload: {STRATEGIES[own.strategy].title} with {own.variant} takes {ratio:.0%} of the"
            f" time ({spent:.2g} s of each step go to the optimizer on the host and its copies)"
        )
    elif least is not None:
        yield (
            f"it fits without offload where gradients are not summed over micro-batches: --global-batch-size"
            f" {cluster.num_devices} ({STRATEGIES[least.strategy].title}), at the price of smaller batches"
        )


def _exact(plan: Plan, profile: ClusterProfile) -> Iterator[str]:
    """Say what a step of plain DDP over all devices would take, where the plan averages less often."""
    if plan.synchronization.mode == "synchronous":
        return
    cluster = derive_cluster.planning_cluster(profile)
    found = [
        c
        for c in STRATEGIES["ddp"].candidates(cluster, plan.workload)
        if c.feasible and c.num_devices == cluster.num_devices
    ]
    best = min(found, key=lambda c: c.time.step_seconds.likely, default=None)
    if best is not None:
        yield (
            f"plain DDP over all {cluster.num_devices} devices would take {best.time.step_seconds.likely:.3g} s a step,"
            f" {best.time.exposed_communication_seconds:.3g} s of it waiting for gradients"
        )


def _without_offload(cluster: Cluster, workload: Workload) -> Candidate | None:
    found = [c for c in planner.enumerate_candidates(cluster, workload) if not ranking.offloads(c)]
    exact = [c for c in found if STRATEGIES[c.strategy].family not in ranking.INEXACT_FAMILIES]
    return ranking.best(exact, cluster, workload.objective)


def _mixed(plan: Plan, profile: ClusterProfile) -> Iterator[str]:
    """Compare a plan over a node of different devices with one for each kind alone, on one scale."""
    for node in profile.nodes:
        kinds: dict[tuple[str, float | None], list[DeviceProfile]] = {}
        for device in node.devices:
            if device.healthy is not False:
                kinds.setdefault((device.name, device.memory_total_bytes.value), []).append(device)
        if len(kinds) == 1 or len(profile.nodes) > 1 or not kinds:
            continue
        for (name, _), devices in kinds.items():
            alone = profile.model_copy(update={"nodes": (node.model_copy(update={"devices": tuple(devices)}),)})
            cluster = derive_cluster.planning_cluster(alone)
            candidates = planner.enumerate_candidates(cluster, plan.workload)
            best = ranking.best(candidates, cluster, plan.workload.objective)
            what = f"on {len(devices)} x {name} alone"
            if best is None:
                yield f"{what} nothing fits"
                continue
            ratio = best.run_seconds.likely / plan.predicted.run_seconds.likely
            how = f"{ratio:.2g} times as long" if not FASTER <= ratio <= SLOWER else "as long"
            names = ",".join(d.uuid or str(d.index) for d in devices)
            yield (
                f"{what}, {STRATEGIES[best.strategy].title} ({best.variant}) is predicted to take {how}"
                f" (CUDA_VISIBLE_DEVICES={names})"
            )
