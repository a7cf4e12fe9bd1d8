"""A complete small plan, for tests that need one without planning."""

from __future__ import annotations

from typing import Any

from stratadvisor.schema.plan import (
    BatchPlan,
    Interval,
    MemoryPlan,
    NodeGroup,
    Parallelism,
    Plan,
    Prediction,
    Provenance,
    SynchronizationPlan,
)
from stratadvisor.schema.workload import ModelShape, Workload


def small_shape() -> ModelShape:
    """Return two layers of 64, about 0.1M parameters (embedding 256 x 64 tied)."""
    return ModelShape(
        name="tiny",
        source="made for tests",
        num_parameters=256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64,
        num_active_parameters=256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64,
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        ffn_hidden_size=128,
        vocab_size=256,
        tied_embeddings=True,
    )


def small_plan(**changes: Any) -> Plan:
    """Return a DDP plan of two CPU ranks: micro-batch 4 x 1 on each, 8 sequences of 32 tokens a step."""
    step = Interval(low=0.05, likely=0.1, high=0.2)
    fields: dict[str, Any] = {
        "strategy": "ddp",
        "family": "synchronous",
        "variant": "micro-batch 4",
        "target": "torchrun",
        "backend": "gloo",
        "device_kind": "cpu",
        "workload": Workload(model=small_shape(), sequence_length=32, global_batch_size=8),
        "precision": "fp32",
        "parallelism": Parallelism(world_size=2, data_parallel_replicate_degree=2),
        "groups": (
            NodeGroup(
                node_class="2xcpu",
                num_nodes=1,
                devices_per_node=2,
                device_name="cpu",
                micro_batch_size=4,
                gradient_accumulation_steps=1,
                batch_per_device=4,
                memory_terms_bytes={"parameters": 3e8},
                memory_peak_bytes=Interval(low=3e8, likely=4e8, high=6e8),
                memory_available_bytes=8e9,
                memory_available_origin="reported",
            ),
        ),
        "batch": BatchPlan(global_batch_size=8, sequence_length=32, micro_batch_size=4, gradient_accumulation_steps=1),
        "memory": MemoryPlan(),
        "synchronization": SynchronizationPlan(),
        "predicted": Prediction(
            step_seconds=step,
            tokens_per_second=Interval(low=1280, likely=2560, high=5120),
            model_flops_utilization=None,
            run_seconds=Interval(low=5, likely=10, high=20),
            run_tokens=25600,
            run_steps=100,
            exposed_communication_fraction=0.1,
            model_flops_per_step=1e9,
        ),
        "provenance": Provenance(stratadvisor_version="0", profile_digest="0", workload_digest="0", ruleset_digest="0"),
    }
    return Plan.model_validate(fields | changes)
