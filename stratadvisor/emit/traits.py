"""What a plan asks of a target beyond its strategy, in words that a manifest can refuse."""

from __future__ import annotations

from stratadvisor.schema.plan import Plan
from stratadvisor.schema.workload import ModelShape

TRAITS = {
    "unequal_shares": "devices take different shares of the batch",
    "unequal_nodes": "nodes have different numbers of devices",
    "several_nodes": "more than one node",
    "fsdp_on_cpu": "FSDP2 among CPU processes",
    "fsdp_offload": "FSDP2 with states in host memory",
    "zero_on_cpu": "ZeRO among CPU processes",
    "cpu": "the devices are CPUs",
    "lora": "adapters over frozen weights",
    "qlora": "adapters over frozen 4-bit weights",
    "own_module": "the model is a factory of the user's, not a transformer of known dimensions",
    "own_script": "the training script is the user's own",
    "encoder": "the model is an encoder with masked tokens",
    "unlike_llama": "the model is no dense decoder with RMSNorm, rotary positions, gated MLP and no biases",
    "experts": "a mixture of experts",
    "offload_cpu": "states or parameters lie in host memory",
    "offload_nvme": "states or parameters lie on a local disk",
    "compressed_gradients": "gradients are exchanged in fewer bits",
    "pure_bf16": "weights and optimizer states in bf16",
    "fp16": "compute in fp16 with a loss scale",
    "half_precision": "compute in 16 bits with weights that are not in 4 bits",
    "compiled": "the model is compiled",
    "model_parallel": "layers are divided among devices",
    "unusual_optimizer": "an optimizer other than AdamW",
    "muon": "the optimizer Muon",
}
"""Trait -> meaning; a manifest's [refuses] may use these names."""


def unlike_llama(model: ModelShape) -> bool:
    """Return whether a transformer differs from Llama in more than its dimensions."""
    biased = model.attention_bias or model.mlp_bias or model.norm_bias
    usual = model.family == "decoder" and model.gated_mlp and model.num_experts == 0 and not model.learned_positions
    return model.is_transformer and (biased or not usual)


def plan_traits(plan: Plan) -> frozenset[str]:
    """Return the traits of a plan."""
    groups, memory, parallel, workload = plan.groups, plan.memory, plan.parallelism, plan.workload
    shares = {(g.micro_batch_size, g.gradient_accumulation_steps, g.batch_per_device) for g in groups}
    uneven = any(g.batch_per_device != g.micro_batch_size * g.gradient_accumulation_steps for g in groups)
    offload = {memory.optimizer_offload, memory.parameter_offload}
    fsdp = plan.strategy in ("fsdp2", "hsdp", "tp_fsdp2")
    degrees = (
        parallel.tensor_parallel_degree,
        parallel.pipeline_parallel_degree,
        parallel.context_parallel_degree,
    )
    found = {
        "unequal_shares": len(shares) > 1 or uneven,
        "unequal_nodes": len({g.devices_per_node for g in groups}) > 1,
        "several_nodes": sum(g.num_nodes for g in groups) > 1,
        "fsdp_on_cpu": plan.device_kind == "cpu" and fsdp,
        "fsdp_offload": fsdp and offload != {"none"},
        "zero_on_cpu": plan.device_kind == "cpu" and memory.zero_stage > 0,
        "cpu": plan.device_kind == "cpu",
        "lora": workload.method == "lora",
        "qlora": workload.method == "qlora",
        "own_module": workload.model.family == "module",
        "own_script": "script" in plan.settings,
        "encoder": workload.model.family == "encoder",
        "unlike_llama": unlike_llama(workload.model),
        "experts": workload.model.num_experts > 0,
        "offload_cpu": "cpu" in offload,
        "offload_nvme": "nvme" in offload,
        "compressed_gradients": plan.synchronization.compression != "none",
        "pure_bf16": plan.precision == "bf16_pure",
        "fp16": plan.precision == "fp16",
        "half_precision": plan.precision != "fp32" and workload.method != "qlora",
        "compiled": plan.compile_model,
        "model_parallel": max(degrees) > 1,
        "unusual_optimizer": workload.optimizer != "adamw",
        "muon": workload.optimizer == "muon",
    }
    return frozenset(name for name, present in found.items() if present)
