"""What the emitted programs cannot do, so that no plan promises it."""

from __future__ import annotations

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.workload import Workload

DIVIDING = frozenset({"fsdp2", "hsdp", "zero1", "zero2", "zero3", "zero_offload", "tp_fsdp2"})
"""Strategies that hand an optimizer flat parts of matrices."""
SHARDING_PARAMETERS_IN_PLACE = ("fsdp2", "hsdp")
"""Strategies whose shards are DTensors of the model's own parameters."""
SERVER_OPTIMIZERS = ("adamw", "sgd", "adafactor")
"""Optimizers that the server of asynchronous SGD runs."""
QUANTIZING_KINDS = ("cuda", "rocm")


def obstacle(strategy: str, cluster: Cluster, workload: Workload) -> str:
    """Return why a strategy cannot train a workload on these devices, whatever their memory; empty where it can."""
    if workload.method != "full" and not workload.model.is_transformer:
        return f"{workload.method} adapters are for transformers, which {workload.model.name} is not known to be"
    if workload.optimizer == "muon" and strategy in DIVIDING:
        return "muon works on whole matrices, which this strategy divides"
    if workload.optimizer == "adamw8bit" and strategy in SHARDING_PARAMETERS_IN_PLACE:
        return "8-bit kernels fail on FSDP2's shards (bitsandbytes issue 1633); ZeRO divides into plain tensors"
    if workload.precision == "bf16_pure" and strategy == "zero_offload":
        return "DeepSpeed's CPU optimizer keeps fp32 states, so nothing is pure bf16 with offload"
    if strategy == "async_sgd" and workload.optimizer not in SERVER_OPTIMIZERS:
        return f"the server of asynchronous SGD runs {', '.join(SERVER_OPTIMIZERS)}, not {workload.optimizer}"
    for node_class in cluster.classes:
        device = node_class.device
        if workload.optimizer == "adamw8bit" and device.kind == "cpu":
            return f"adamw8bit needs a GPU, {device.name} is none"
        if workload.method == "qlora" and device.kind not in QUANTIZING_KINDS:
            return f"qlora needs a CUDA or ROCm GPU, {device.name} is none"
    return ""
