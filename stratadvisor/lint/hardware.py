"""What the devices of a cluster cannot do, though the configuration asks for it."""

from __future__ import annotations

from stratadvisor.lint.finding import Kind
from stratadvisor.lint.layout import setting_of
from stratadvisor.lint.lightning_rules import trainer_path
from stratadvisor.lint.subject import Subject, number, whole
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.units import format_bytes

DEFAULT_BUCKET = 500_000_000
"""Elements of reduce_bucket_size and allgather_bucket_size where none is given (deepspeed 0.19.8)."""
BUCKET_SHARE = 0.1
FP16_CAPABILITY, TF32_CAPABILITY = 7, 8


def check_hardware(subject: Subject, kind: Kind, cluster: Cluster) -> None:
    """Report number formats that a class of devices lacks, and buckets that are too large for it."""
    found = setting_of(kind, subject.data, subject.world_size or cluster.num_devices)
    for node_class in cluster.classes:
        device = node_class.device
        if device.kind == "cpu":
            continue
        major = None if device.compute_capability is None else device.compute_capability[0]
        if (
            found.precision in ("bf16", "bf16_pure")
            and device.catalog_key is not None
            and "bf16" not in device.supports
        ):
            subject.report(
                "HW101",
                _precision_path(kind, subject, "bf16"),
                f"{device.name} has no bf16 units",
                "fp16 with a dynamic loss scale" if (major or 0) >= FP16_CAPABILITY else "fp32",
            )
        if found.engine == "deepspeed" and found.precision == "fp16" and major is not None and major < FP16_CAPABILITY:
            subject.report(
                "HW102",
                _precision_path(kind, subject, "fp16"),
                f"DeepSpeed refuses fp16 on {device.name} (compute capability {major})",
                "fp32",
            )
        if (
            kind == "transformers"
            and subject.data.get("tf32") is True
            and major is not None
            and major < TF32_CAPABILITY
        ):
            subject.report(
                "HW103", ("tf32",), f"{device.name} has no tf32, and the Trainer refuses it there", "tf32: false"
            )
        _buckets(subject, kind, node_class)


def _precision_path(kind: Kind, subject: Subject, name: str) -> tuple[str, ...]:
    if kind == "deepspeed":
        return (name, "enabled")
    if kind == "accelerate":
        return ("mixed_precision",)
    return (*trainer_path(subject.data), "precision") if kind == "lightning" else (name,)


def _buckets(subject: Subject, kind: Kind, node_class: NodeClass) -> None:
    """Two bytes for each element: one bucket, two where reduction overlaps, and one to gather the result."""
    where = () if kind == "deepspeed" else ("deepspeed",) if kind == "transformers" else None
    have = node_class.device.memory_total_bytes
    if where is None or have is None:
        return
    zero = subject.section(*where, "zero_optimization")
    stage = whole(zero.get("stage"))
    if stage not in (1, 2):
        return
    reduce = number(zero.get("reduce_bucket_size", DEFAULT_BUCKET))
    gather = number(zero.get("allgather_bucket_size", DEFAULT_BUCKET))
    if reduce is None or gather is None:
        return  # "auto"
    taken = 2 * (reduce * (2 if zero.get("overlap_comm") is True else 1) + gather)
    if taken > BUCKET_SHARE * have:
        subject.report(
            "HW104",
            (*where, "zero_optimization"),
            f"reduce and all-gather buckets take {format_bytes(taken)} of the {format_bytes(have)} of"
            f" {node_class.device.name}",
            "reduce_bucket_size and allgather_bucket_size of 50000000",
        )
