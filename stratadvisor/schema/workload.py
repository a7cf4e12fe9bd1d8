"""What the user wants to train."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stratadvisor.schema.base import Document, PositiveInt

Method = Literal["full", "lora", "qlora"]
Optimizer = Literal["adamw", "adamw8bit", "adafactor", "sgd", "muon"]
Objective = Literal["time", "cost", "energy"]
PrecisionChoice = Literal["auto", "fp32", "bf16", "fp16", "bf16_pure"]
Family = Literal["decoder", "encoder", "module"]


class ModelShape(Document):
    """Dimensions of a transformer, or the counted totals of any other module (family ``module``)."""

    name: str
    source: str = ""
    """Where the dimensions come from: a URL, a file, or "chosen for 7B"."""
    family: Family = "decoder"
    num_parameters: PositiveInt
    """All of them, experts and embeddings included; tied matrices once."""
    num_active_parameters: PositiveInt
    """Those that one token passes through; equal to num_parameters for a dense model."""
    num_layers: int = Field(default=0, ge=0)
    hidden_size: int = Field(default=0, ge=0)
    num_attention_heads: int = Field(default=0, ge=0)
    num_key_value_heads: int = Field(default=0, ge=0)
    head_dim: int = Field(default=0, ge=0)
    ffn_hidden_size: int = Field(default=0, ge=0)
    """Width of the MLP; of one expert for a mixture of experts."""
    gated_mlp: bool = True
    vocab_size: int = Field(default=0, ge=0)
    task_outputs: int = Field(default=0, ge=0)
    """Outputs per token of a task's own head (classes, ends of a span); 0: the model predicts the vocabulary."""
    tied_embeddings: bool = False
    max_sequence_length: int = Field(default=0, ge=0)
    num_experts: int = Field(default=0, ge=0)
    num_experts_per_token: int = Field(default=0, ge=0)
    num_shared_experts: int = Field(default=0, ge=0)
    num_dense_layers: int = Field(default=0, ge=0)
    """Layers of a mixture of experts that have an ordinary MLP of width dense_ffn_hidden_size."""
    dense_ffn_hidden_size: int = Field(default=0, ge=0)
    attention_bias: bool = False
    mlp_bias: bool = False
    learned_positions: bool = False
    norm_bias: bool = False
    fp16_overflows: bool = False
    """Whether activations exceed what fp16 holds, since the model was trained in bf16."""
    num_vision_parameters: int = Field(default=0, ge=0)
    """Of a vision tower beside the text model; not part of num_parameters."""
    flops_per_item: float | None = None
    """Family ``module``: forward FLOPs of one item (image, sequence), counted on the meta device."""
    saved_bytes_per_item: float | None = None
    """Family ``module``: bytes that autograd keeps for one item in fp32, counted."""
    factory: str = ""
    """Family ``module``: ``pkg.module:callable``."""

    @property
    def is_transformer(self) -> bool:
        """Whether the transformer formulas apply."""
        return self.family != "module"

    @property
    def num_outputs(self) -> int:
        """Columns of the output projection."""
        return self.task_outputs or self.vocab_size

    @property
    def attention_width(self) -> int:
        """Query heads times head size (equal to hidden_size in most models)."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Key (or value) heads times head size."""
        return self.num_key_value_heads * self.head_dim


class Workload(Document):
    """A model and how it is to be trained."""

    model: ModelShape
    method: Method = "full"
    lora_rank: PositiveInt = 16
    sequence_length: PositiveInt = 2048
    global_batch_size: PositiveInt | None = None
    """Sequences per optimizer step; None lets the planner choose and say so."""
    total_tokens: float | None = Field(default=None, gt=0)
    """Length of the run; None: 20 tokens per parameter for full training (arXiv:2203.15556), said as an assumption."""
    optimizer: Optimizer = "adamw"
    precision: PrecisionChoice = "auto"
    objective: Objective = "time"
    max_staleness_steps: int = Field(default=64, ge=0)
    """Largest gradient delay the user accepts; 0 forbids every method that is not exact."""
    data_stays: bool = False
    """Whether each node's data may not leave it."""
    price_per_device_hour: float | None = Field(default=None, gt=0)
    frozen_parameters: float = Field(default=0.0, ge=0, le=1e15)
    """Of frozen models that run beside the trained one: DPO's reference, a teacher."""
    grid_carbon_grams_per_kilowatt_hour: float | None = Field(default=None, gt=0)
    """CO2 of the electricity, as the user gave it; None: emissions are not stated."""

    @model_validator(mode="after")
    def _fits_positions(self) -> Workload:
        if self.model.learned_positions and 0 < self.model.max_sequence_length < self.sequence_length:
            raise ValueError(
                f"{self.model.name} has {self.model.max_sequence_length} learned positions;"
                f" a sequence length of {self.sequence_length} does not fit"
            )
        return self
