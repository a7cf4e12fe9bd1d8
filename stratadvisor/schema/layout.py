"""What one candidate does: the input of every cost formula, and what they return.

Plain dataclasses, made by thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stratadvisor.schema.workload import Method, Optimizer

Sharding = Literal["none", "optimizer", "gradients", "parameters"]
"""ZeRO stages 0 to 3 by what is divided among the data-parallel ranks (each includes the ones before it)."""
Engine = Literal["torch", "ddp", "fsdp2", "deepspeed", "megatron", "local", "async"]
"""Whose buffers and overlap apply. local: DiLoCo and local SGD; async: parameter server with delay compensation."""
Checkpointing = Literal["none", "selective", "full"]
Offload = Literal["none", "cpu", "nvme"]
MixedPrecision = Literal["fp32", "bf16", "fp16", "bf16_pure"]
"""bf16 and fp16: compute in 16 bit, fp32 master weights and optimizer states. bf16_pure: everything in bf16."""
Fp8Scaling = Literal["none", "delayed", "tensor", "block"]
"""How the linear layers' operands are scaled to fp8. delayed: by the maxima of earlier steps; tensor: by the tensor's
own; block: one scale for every 32 elements (MXFP8); none: they stay in ``precision``."""


Loss = Literal["whole", "chunked", "returned"]
"""How the loss treats its scores. whole: all at once, in fp32; chunked: a part of the tokens after the other, 16-bit
scores waiting; returned: whole, and the model returns its fp32 scores beside the loss (transformers until 2024)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything that decides what one rank holds and does in one optimizer step.

    ranks = replicate * shard * tensor * pipeline * context degree.
    """

    engine: Engine = "torch"
    data_parallel_replicate_degree: int = 1
    data_parallel_shard_degree: int = 1
    tensor_parallel_degree: int = 1
    pipeline_parallel_degree: int = 1
    virtual_pipeline_chunks: int = 1
    stage_layers: tuple[int, ...] = ()
    """Layers of each pipeline stage, first to last; empty: as even as they can be."""
    pipeline_micro_batches: int = 0
    """Micro-batches between two drains of the pipeline, which torch's schedules empty after every local batch; 0: all
    of a step."""
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1
    sequence_parallel: bool = True
    """Megatron-style, with tensor parallelism only."""
    sharding: Sharding = "none"
    whole_tensor_shards: bool = False
    """ZeRO-1 by whole tensors: gradients are summed everywhere, each owner broadcasts the weights it has updated; else
    by slices of flat buckets, which are scattered and gathered."""
    micro_batch_size: int = 1
    """Sequences per data-parallel rank per forward pass (of the slowest class when classes differ)."""
    gradient_accumulation_steps: int = 1
    sequence_length: int = 2048
    precision: MixedPrecision = "bf16"
    fp8_scaling: Fp8Scaling = "none"
    """Linear layers in fp8 beside 16-bit weights, gradients and states."""
    optimizer: Optimizer = "adamw"
    activation_checkpointing: Checkpointing = "none"
    optimizer_offload: Offload = "none"
    parameter_offload: Offload = "none"
    method: Method = "full"
    lora_rank: int = 16
    double_quantized: bool = True
    """QLoRA: whether the scales of 4-bit weights are 8-bit themselves."""
    frozen_inputs_kept: bool = False
    """QLoRA: whether 4-bit matrices keep their input, as bitsandbytes did until 2024 (autograd/_functions.py)."""
    loss: Loss = "whole"
    flat_units: bool = False
    """FSDP by torch's FullyShardedDataParallel, which makes one flat tensor of each unit, instead of fully_shard."""
    flash_attention: bool = True
    flash_generation: int = 2
    """1: the kernels of FlashAttention and Triton of 2022 and early 2023, half as fast as those since."""
    python_norms: bool = False
    """RMSNorm and rotary embedding written in Python and in fp32, as models before torch 2.9's fused norm bring them;
    matters where nothing is compiled."""
    tuned_kernels: bool = False
    """Transformer Engine's products and attention in a PyTorch program (Megatron has them anyway)."""
    dropout: bool = True
    """Whether a model of the kind that has dropout (no gated MLP, Megatron's layers) applies it."""
    compiled: bool = False
    """torch.compile (or Megatron's fused kernels): fewer passes over memory."""
    sync_interval_steps: int = 1
    """Local steps between exchanges (local SGD, DiLoCo); 1: every step."""
    exchange_delay_steps: int = 0
    """Steps that run while an exchange is under way (engine local); fewer than ``sync_interval_steps``."""
    outer_optimizer: bool = False
    """Whether an optimizer of its own joins the replicas (DiLoCo), instead of plain averaging."""

    @property
    def data_parallel_degree(self) -> int:
        """Number of different micro-batches at a time."""
        return self.data_parallel_replicate_degree * self.data_parallel_shard_degree

    @property
    def model_parallel_degree(self) -> int:
        """Ranks that share one micro-batch."""
        return self.tensor_parallel_degree * self.pipeline_parallel_degree * self.context_parallel_degree

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.data_parallel_degree * self.model_parallel_degree

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step with equal shares."""
        return self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_degree


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A prediction: 90 % of truths lie between low and high."""

    low: float
    likely: float
    high: float

    def __post_init__(self) -> None:
        """Prove the order."""
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"span out of order: {self.low} {self.likely} {self.high}")

    def scaled(self, factor: float) -> Span:
        """Return the span times a positive factor."""
        return Span(low=self.low * factor, likely=self.likely * factor, high=self.high * factor)

    @staticmethod
    def around(likely: float, relative: float) -> Span:
        """Return likely/(1+relative) .. likely*(1+relative)."""
        return Span(low=likely / (1 + relative), likely=likely, high=likely * (1 + relative))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of one rank's device, and what it takes of the host."""

    terms_bytes: dict[str, float]
    """parameters, gradients, optimizer_states, activations, logits, gathered_units, buffers, adapters, context,
    reserve: what is alive at the peak; they add up to peak_bytes.likely."""
    peak_bytes: Span
    """Device memory in use at the peak, including context and allocator reserve (what nvidia-smi would show)."""
    peak_phase: str
    """loss, backward, optimizer; wrapping, where nothing later is as large."""
    allocated_bytes: float = 0.0
    """What tensors take at most, at whatever moment that is (torch.cuda.max_memory_allocated)."""
    host_bytes_per_rank: float = 0.0
    """Pinned or resident host memory of one rank (offload, the training process itself)."""
    nvme_bytes_per_rank: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """Time of one optimizer step."""

    terms_seconds: dict[str, float]
    """matmul, attention, memory_bound, recompute, tensor_parallel, pipeline_bubble, exposed_communication, optimizer,
    offload, data_wait, straggler, launch: they add up to step_seconds.likely."""
    step_seconds: Span
    communication_seconds: float
    """All communication of a step, hidden or not."""
    exposed_communication_seconds: float
    model_flops_per_step: float
    """Without recomputation; causal attention counted as half."""
    tokens_per_step: float
    assumptions: tuple[str, ...] = ()

    @property
    def exposed_communication_fraction(self) -> float:
        """Share of the step."""
        return self.exposed_communication_seconds / self.step_seconds.likely


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShare:
    """What each device of one node class does in a step."""

    node_class: str
    num_nodes: int
    devices_per_node: int
    micro_batch_size: int
    gradient_accumulation_steps: int
    batch_per_device: int
    """Sequences per optimizer step on one device of this class."""
    memory: MemoryEstimate
    compute_seconds: float
    """Time of its own work in a step, without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to train, costed. ``strategies/*.py`` make them, ``planner`` ranks them."""

    strategy: str
    """Name in ``stratadvisor.strategies.STRATEGIES``."""
    variant: str
    """Short text that tells it from others of its strategy: "ZeRO-2, full checkpointing, micro-batch 4"."""
    layout: Layout
    shares: tuple[ClassShare, ...]
    """One per node class used; classes left out do not appear."""
    time: TimeEstimate
    """Seconds of one optimizer step of the whole job."""
    global_batch_size: int
    """Sequences per optimizer step over all devices: the sum over the shares."""
    extra_steps_fraction: float = 0.0
    """Further steps it needs to the same loss, with its source in ``notes`` (0 for exact methods)."""
    run_seconds: Span = field(default_factory=lambda: Span(low=0, likely=0, high=0))
    """Predicted time to the target: steps * (1 + extra) * step time."""
    feasible: bool = True
    infeasible_reason: str = ""
    """The number that kills it: "needs 112 GiB of 79.1 GiB on A100-80GB"."""
    shortfall_bytes: float = 0.0
    """How much memory is missing, 0 when it fits."""
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Strategy-specific: outer_learning_rate, staleness_bound, compression, group sizes ..."""
    notes: tuple[str, ...] = ()
    """Assumptions worth showing."""

    @property
    def num_devices(self) -> int:
        """Devices that take part."""
        return sum(s.num_nodes * s.devices_per_node for s in self.shares)

    @property
    def memory(self) -> MemoryEstimate:
        """The tightest class's memory."""
        return max((s.memory for s in self.shares), key=lambda m: m.peak_bytes.likely)
