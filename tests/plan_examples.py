"""Plans with fixed content, one for each way to start; the emit tests and the goldens build on them."""

from __future__ import annotations

from stratadvisor.schema.base import reported
from stratadvisor.schema.plan import (
    BatchPlan,
    Decision,
    Interval,
    MemoryPlan,
    NodeGroup,
    Parallelism,
    Plan,
    Prediction,
    Provenance,
    SynchronizationPlan,
)
from stratadvisor.schema.profile import ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.workload import ModelShape, Workload

GIB = 1024**3


def small_model() -> ModelShape:
    """Return a model that a CPU trains: 2 layers of width 64."""
    # embedding 256*64 (tied); a layer: 4*64*64 attention + 3*64*176 gated MLP + 2*64 norms; final norm 64
    parameters = 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 64
    return ModelShape(
        name="tiny",
        source="written for the tests",
        num_parameters=parameters,
        num_active_parameters=parameters,
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        ffn_hidden_size=176,
        vocab_size=256,
        tied_embeddings=True,
        max_sequence_length=128,
    )


def large_model() -> ModelShape:
    """Return the dimensions of a 7B model."""
    return ModelShape(
        name="chosen for 7B",
        num_parameters=6_738_415_616,
        num_active_parameters=6_738_415_616,
        num_layers=32,
        hidden_size=4096,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=128,
        ffn_hidden_size=11008,
        vocab_size=32000,
        max_sequence_length=4096,
    )


def group(
    name: str = "cpu",
    *,
    nodes: int = 1,
    devices: int = 2,
    micro: int = 2,
    accumulation: int = 1,
    device_name: str = "CPU",
    hostnames: tuple[str, ...] = (),
) -> NodeGroup:
    """Return nodes whose devices all fill their micro-batches."""
    return NodeGroup(
        node_class=name,
        num_nodes=nodes,
        devices_per_node=devices,
        device_name=device_name,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        batch_per_device=micro * accumulation,
        hostnames=hostnames,
        memory_terms_bytes={"parameters": 2.0 * GIB, "activations": 1.0 * GIB},
        memory_peak_bytes=Interval(low=2.5 * GIB, likely=3.0 * GIB, high=4.0 * GIB),
        memory_available_bytes=8.0 * GIB,
        memory_available_origin="measured",
    )


def make_plan(
    strategy: str,
    target: str,
    groups: tuple[NodeGroup, ...] = (),
    *,
    model: ModelShape | None = None,
    sequence_length: int = 64,
    device_kind: str = "cpu",
    precision: str = "fp32",
    shard_degree: int = 1,
    memory: MemoryPlan | None = None,
    synchronization: SynchronizationPlan | None = None,
    **changes: object,
) -> Plan:
    """Return a complete plan; ``changes`` are further fields of Plan."""
    groups = groups or (group(),)
    world = sum(g.num_nodes * g.devices_per_node for g in groups)
    content: dict[str, object] = {
        "strategy": strategy,
        "family": "synchronous",
        "variant": f"{strategy}, micro-batch {groups[0].micro_batch_size}",
        "target": target,
        "backend": "gloo" if device_kind == "cpu" else "nccl",
        "device_kind": device_kind,
        "workload": Workload(model=model or small_model(), sequence_length=sequence_length),
        "precision": precision,
        "parallelism": Parallelism(
            world_size=world,
            data_parallel_replicate_degree=world // shard_degree,
            data_parallel_shard_degree=shard_degree,
        ),
        "groups": groups,
        "batch": BatchPlan(
            global_batch_size=sum(g.num_nodes * g.devices_per_node * g.batch_per_device for g in groups),
            sequence_length=sequence_length,
            micro_batch_size=groups[0].micro_batch_size,
            gradient_accumulation_steps=groups[0].gradient_accumulation_steps,
            uneven=len({g.batch_per_device for g in groups}) > 1,
        ),
        "memory": memory or MemoryPlan(),
        "synchronization": synchronization or SynchronizationPlan(),
        "predicted": Prediction(
            step_seconds=Interval(low=0.8, likely=1.0, high=1.3),
            tokens_per_second=Interval(low=800, likely=1000, high=1200),
            model_flops_utilization=None,
            run_seconds=Interval(low=4000, likely=5000, high=6500),
            run_tokens=5e6,
            run_steps=5000,
            exposed_communication_fraction=0.125,
            model_flops_per_step=1e12,
        ),
        "decisions": (
            Decision(question="equal_nodes", ask="Are the nodes equal?", branch="SY100", name="equal", because="Yes."),
        ),
        "assumptions": ("the run is 5M tokens long",),
        "provenance": Provenance(
            stratadvisor_version="0.1.0", profile_digest="p" * 16, workload_digest="w" * 16, ruleset_digest="r" * 16
        ),
    }
    return Plan.model_validate(content | changes)


def profile() -> ClusterProfile:
    """Return one node with one CPU device."""
    device = DeviceProfile(index=0, kind="cpu", name="CPU", memory_total_bytes=reported(8.0 * GIB))
    return ClusterProfile(name="example", nodes=(NodeProfile(hostname="node-a", devices=(device,)),))


def examples() -> dict[str, Plan]:
    """Return the plans of the golden files by name."""
    a100 = {"device_name": "NVIDIA A100-SXM4-80GB", "micro": 4}
    return {
        "ddp_cpu": make_plan("ddp", "torchrun"),
        "uneven_ddp_gpu": make_plan(
            "uneven_ddp",
            "torchrun",
            (
                group("a100", nodes=2, devices=8, hostnames=("fast-1", "fast-2"), **a100),
                group("v100", devices=4, micro=2, device_name="Tesla V100", hostnames=("slow-1",)),
            ),
            model=large_model(),
            sequence_length=2048,
            device_kind="cuda",
            precision="bf16",
            environment={"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=eth0"},
        ),
        "hsdp_gpu": make_plan(
            "hsdp",
            "torchrun",
            (group("h100", nodes=16, devices=8, device_name="NVIDIA H100", micro=2),),
            model=large_model(),
            sequence_length=4096,
            device_kind="cuda",
            precision="bf16",
            shard_degree=8,
            memory=MemoryPlan(sharding="parameters", activation_checkpointing="selective"),
        ),
        "zero2_cpu": make_plan(
            "zero2",
            "deepspeed",
            (group(accumulation=2),),
            shard_degree=2,
            memory=MemoryPlan(sharding="gradients", zero_stage=2),
        ),
        "zero3_gpu": make_plan(
            "zero3",
            "deepspeed",
            (group("a100", nodes=2, devices=8, accumulation=2, hostnames=("gpu-1", "gpu-2"), **a100),),
            model=large_model(),
            sequence_length=2048,
            device_kind="cuda",
            precision="bf16",
            shard_degree=16,
            memory=MemoryPlan(sharding="parameters", zero_stage=3, activation_checkpointing="full"),
        ),
        "zero_offload_gpu": make_plan(
            "zero_offload",
            "deepspeed",
            (group("rtx", devices=1, device_name="NVIDIA GeForce RTX 3090", micro=1, accumulation=8),),
            model=large_model(),
            sequence_length=2048,
            device_kind="cuda",
            precision="fp16",
            memory=MemoryPlan(
                sharding="parameters",
                zero_stage=3,
                optimizer_offload="cpu",
                parameter_offload="cpu",
                activation_checkpointing="full",
            ),
        ),
        "diloco_cpu": make_plan(
            "diloco",
            "async",
            synchronization=SynchronizationPlan(mode="local_sgd", sync_interval_steps=8),
            settings={"outer_learning_rate": 0.7, "outer_momentum": 0.9},
        ),
        "async_sgd_cpu": make_plan(
            "async_sgd",
            "async",
            synchronization=SynchronizationPlan(mode="asynchronous", max_staleness_steps=4),
            settings={"delay_compensation": 0.04},
        ),
    }
