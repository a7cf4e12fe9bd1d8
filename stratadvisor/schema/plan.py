"""The plan: the answer of ``recommend``, complete enough to explain, emit and validate without computing again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stratadvisor.schema.base import Document, Many, NonNegative, Origin, PositiveInt
from stratadvisor.schema.facts import FactValue
from stratadvisor.schema.layout import Checkpointing, MixedPrecision, Offload, Sharding
from stratadvisor.schema.workload import Workload

PLAN_SCHEMA_VERSION = 1


class Interval(Document):
    """90 % of truths lie between low and high."""

    low: float
    likely: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.low <= self.likely <= self.high:
            raise ValueError(f"interval out of order: {self.low} {self.likely} {self.high}")
        return self


class ClauseResult(Document):
    """One comparison of a branch."""

    fact: str
    operator: str
    expected: str
    """As the rule file writes it."""
    actual: FactValue
    actual_text: str = ""
    """With its unit, for people."""
    origin: Origin = "unknown"
    outcome: bool | None
    """None: the fact is unknown."""


class Decision(Document):
    """A branch taken."""

    question: str
    """Id of the question."""
    ask: str
    branch: str
    name: str
    because: str
    clauses: Many[ClauseResult] = ()
    """The clauses of the branch taken."""
    passed_over: Many[str] = ()
    """Branches tried before it: ``SY110: interconnect.x <= 0.05 is false (0.31)``."""
    sets: dict[str, str | int | float | bool] = Field(default_factory=dict)
    source_file: str = ""
    sources: Many[str] = ()


class Parallelism(Document):
    """Degrees; the product of data, tensor, pipeline and context degrees is the world size."""

    world_size: PositiveInt
    data_parallel_replicate_degree: PositiveInt = 1
    data_parallel_shard_degree: PositiveInt = 1
    tensor_parallel_degree: PositiveInt = 1
    pipeline_parallel_degree: PositiveInt = 1
    context_parallel_degree: PositiveInt = 1
    expert_parallel_degree: PositiveInt = 1
    """Ranks that divide the experts among them; taken out of the data and context ranks, so no factor of its own."""
    virtual_pipeline_chunks: PositiveInt = 1
    """Pieces of the model on one pipeline rank; more than 1: the interleaved schedule."""
    sequence_parallel: bool = False
    """Whether tensor-parallel ranks also divide norms and residuals along the sequence."""

    @property
    def model_parallel_degree(self) -> int:
        """Devices that work on the same sequences."""
        return self.tensor_parallel_degree * self.pipeline_parallel_degree * self.context_parallel_degree

    @property
    def who_shares(self) -> str:
        """Whose the shares of the batch are, in words: "a device", "for each 8 devices"."""
        together = self.model_parallel_degree
        return "a device" if together == 1 else f"for each {together} devices"

    @model_validator(mode="after")
    def _product(self) -> Parallelism:
        factors = (
            self.data_parallel_replicate_degree,
            self.data_parallel_shard_degree,
            self.tensor_parallel_degree,
            self.pipeline_parallel_degree,
            self.context_parallel_degree,
        )
        product = 1
        for factor in factors:
            product *= factor
        if product != self.world_size:
            raise ValueError(
                "replicate x shard x tensor x pipeline x context = "
                f"{' x '.join(map(str, factors))} = {product}, not the world size {self.world_size}"
            )
        without_experts = product // (self.tensor_parallel_degree * self.pipeline_parallel_degree)
        if without_experts % self.expert_parallel_degree:
            raise ValueError(
                f"{self.expert_parallel_degree} expert ranks do not divide the {without_experts} data and context ranks"
            )
        if self.virtual_pipeline_chunks > 1 and self.pipeline_parallel_degree == 1:
            raise ValueError(f"{self.virtual_pipeline_chunks} virtual chunks need a pipeline of more than one stage")
        return self


class NodeGroup(Document):
    """Alike nodes and what each of their devices does in a step."""

    node_class: str
    num_nodes: PositiveInt
    devices_per_node: PositiveInt
    device_name: str
    micro_batch_size: PositiveInt
    gradient_accumulation_steps: PositiveInt
    batch_per_device: PositiveInt
    """Sequences per optimizer step on one device, the same ones for devices that share layers."""
    hostnames: Many[str] = ()
    memory_terms_bytes: dict[str, float] = Field(default_factory=dict)
    memory_peak_bytes: Interval
    memory_available_bytes: float | None
    """Free (or, when unknown, total) device memory; None when neither is known."""
    memory_available_origin: Origin = "unknown"
    host_bytes_per_rank: NonNegative = 0.0
    compute_seconds: NonNegative = 0.0

    @model_validator(mode="after")
    def _identity(self) -> NodeGroup:
        if self.batch_per_device > self.micro_batch_size * self.gradient_accumulation_steps:
            raise ValueError(
                f"{self.node_class}: {self.batch_per_device} sequences do not fit in {self.gradient_accumulation_steps}"
                f" micro-batches of {self.micro_batch_size}"
            )
        return self


class BatchPlan(Document):
    """The batch identity: the global batch is the sum over devices."""

    global_batch_size: PositiveInt
    """Sequences per optimizer step."""
    sequence_length: PositiveInt
    micro_batch_size: PositiveInt
    """Of the first group."""
    gradient_accumulation_steps: PositiveInt
    """Of the first group."""
    uneven: bool = False


class MemoryPlan(Document):
    """What is divided, recomputed or moved out of the device."""

    sharding: Sharding = "none"
    zero_stage: int = Field(default=0, ge=0, le=3)
    activation_checkpointing: Checkpointing = "none"
    optimizer_offload: Offload = "none"
    parameter_offload: Offload = "none"


class SynchronizationPlan(Document):
    """When replicas meet."""

    mode: Literal["synchronous", "hierarchical", "local_sgd", "asynchronous"] = "synchronous"
    sync_interval_steps: PositiveInt = 1
    max_staleness_steps: int = Field(default=0, ge=0)
    compression: Literal["none", "bf16", "fp16", "sign"] = "none"


class Prediction(Document):
    """What a step and a run should cost."""

    step_seconds: Interval
    tokens_per_second: Interval
    model_flops_utilization: Interval | None
    """MFU against the dense catalog peak; None when no peak is known (a CPU, an unlisted device)."""
    run_seconds: Interval
    run_tokens: float
    run_steps: PositiveInt
    energy_joules: Interval | None = None
    """Of the devices over the run; hosts, switches and cooling are not in it."""
    energy_joules_per_thousand_samples: Interval | None = None
    """The same for a thousand sequences (or items)."""
    carbon_grams: Interval | None = None
    """CO2 of energy_joules at the grid intensity the user gave; None without it."""
    cost: Interval | None = None
    """In the currency of --price-per-device-hour; None without it."""
    time_terms_seconds: dict[str, float] = Field(default_factory=dict)
    exposed_communication_fraction: float = Field(ge=0, le=1)
    model_flops_per_step: float
    calibrated: bool = False
    """Whether an earlier validation run of this kind on this cluster corrected it."""


class Alternative(Document):
    """A candidate not chosen."""

    strategy: str
    variant: str
    feasible: bool
    run_seconds: Interval | None = None
    relative_to_choice: float | None = None
    """Its predicted time to the target over the choice's."""
    reason: str = ""
    """Why it was not chosen, or the number that kills it."""
    inside_family: bool = True
    """Whether the flowchart's family contains it."""


class Flip(Document):
    """What would change the answer."""

    fact: str
    now: str
    threshold: str
    then: str
    """The strategy that would win."""


class Provenance(Document):
    """Digests of the inputs; no time stamp, so that the same inputs give the same bytes."""

    stratadvisor_version: str
    profile_digest: str
    workload_digest: str
    ruleset_digest: str
    overlays: Many[str] = ()


class Plan(Document):
    """The whole answer."""

    schema_version: int = PLAN_SCHEMA_VERSION
    strategy: str
    """Name in the table of strategies: single, ddp, uneven_ddp, hierarchical, fsdp2, hsdp, zero1, zero2, zero3,
    zero_offload, tp_fsdp2, megatron_3d, diloco, async_sgd."""
    family: str
    """What the flowchart chose: synchronous, uneven_synchronous, hierarchical, local_sgd, asynchronous, single."""
    variant: str
    target: str
    """Template folder that emits it: torchrun, deepspeed, async, megatron."""
    backend: Literal["nccl", "gloo"]
    device_kind: str
    workload: Workload
    precision: MixedPrecision
    parallelism: Parallelism
    groups: Many[NodeGroup] = Field(min_length=1)
    batch: BatchPlan
    memory: MemoryPlan
    synchronization: SynchronizationPlan
    data_loader_workers: int = Field(default=0, ge=0)
    compile_model: bool = False
    adaptive: bool = False
    """Whether the training program may leave the plan for what it measures (``--adaptive``)."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the launch script, decided by rules: NCCL_DEBUG, GLOO_SOCKET_IFNAME, PYTORCH_ALLOC_CONF ..."""
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Strategy-specific: outer_learning_rate, staleness_bound, delay_compensation ..."""
    predicted: Prediction
    decisions: Many[Decision] = ()
    alternatives: Many[Alternative] = ()
    flips: Many[Flip] = ()
    warnings: Many[str] = ()
    assumptions: Many[str] = ()
    provenance: Provenance

    @model_validator(mode="after")
    def _identities(self) -> Plan:
        devices = sum(g.num_nodes * g.devices_per_node for g in self.groups)
        if devices != self.parallelism.world_size:
            raise ValueError(f"the groups have {devices} devices, the world size is {self.parallelism.world_size}")
        taken = sum(g.num_nodes * g.devices_per_node * g.batch_per_device for g in self.groups)
        batch = taken // self.parallelism.model_parallel_degree
        if batch != self.batch.global_batch_size:
            raise ValueError(f"the devices' shares sum to {batch}, the global batch is {self.batch.global_batch_size}")
        return self
