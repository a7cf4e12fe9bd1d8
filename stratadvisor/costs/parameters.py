"""Where the parameters of a model are: embedding, layers, head, experts, adapters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters. embedding + head + num_layers * per_layer = total, up to rounding of the average."""

    embedding: float
    """Tokens, learned positions and a vision tower; of a counted module all of it."""
    head: float
    """Output matrix; 0 when tied to the embedding."""
    per_layer: float
    """Of an average layer, experts included, norms and biases of the rest shared out."""
    experts_per_layer: float
    """The part of per_layer that lies in routed experts."""
    adapted_per_layer: float
    """The part of per_layer in matrices that get adapters (LoRA) and 4-bit storage (QLoRA): attention and dense MLP."""
    adapter_edges_per_layer: float
    """Sum of input and output widths of those matrices: times the rank, the parameters of the adapters."""
    num_layers: int
    largest_matrix: float
    total: int


@lru_cache(maxsize=4096)
def count_parameters(shape: ModelShape) -> ParameterCounts:
    """Return the counts. The total is the shape's own, exact for the supported families."""
    total = shape.num_parameters + shape.num_vision_parameters
    if not shape.is_transformer or not shape.num_layers:
        return ParameterCounts(
            embedding=total,
            head=0,
            per_layer=0,
            experts_per_layer=0,
            adapted_per_layer=0,
            adapter_edges_per_layer=0,
            num_layers=0,
            largest_matrix=total / 10,
            total=total,
        )
    hidden, layers, vocab = shape.hidden_size, shape.num_layers, shape.vocab_size
    positions = shape.max_sequence_length * hidden if shape.learned_positions else 0
    embedding = vocab * hidden + positions + shape.num_vision_parameters
    head = 0 if shape.tied_embeddings else vocab * hidden
    matrices = 3 if shape.gated_mlp else 2
    mixture = layers - shape.num_dense_layers if shape.num_experts else 0
    experts = mixture * shape.num_experts * matrices * hidden * shape.ffn_hidden_size / layers
    attention, attention_edges = _attention(shape)
    dense_width = (
        (
            shape.num_dense_layers * shape.dense_ffn_hidden_size
            + mixture * shape.num_shared_experts * shape.ffn_hidden_size
        )
        / layers
        if shape.num_experts
        else shape.ffn_hidden_size
    )
    per_layer = max(0.0, (total - embedding - head) / layers)
    return ParameterCounts(
        embedding=embedding,
        head=head,
        per_layer=per_layer,
        experts_per_layer=min(experts, per_layer),
        adapted_per_layer=min(per_layer, attention + matrices * hidden * dense_width),
        adapter_edges_per_layer=attention_edges + matrices * (hidden + dense_width) * (dense_width > 0),
        num_layers=layers,
        largest_matrix=max(vocab * hidden, hidden * shape.ffn_hidden_size, shape.attention_width * hidden),
        total=total,
    )


def _attention(shape: ModelShape) -> tuple[float, float]:
    """Return (weights, sum of edges) of the four projections."""
    hidden, queries, keys = shape.hidden_size, shape.attention_width, shape.key_value_width
    return 2 * hidden * (queries + keys), 4 * hidden + 2 * queries + 2 * keys


def adapter_parameters(counts: ParameterCounts, rank: int) -> float:
    """Return the trainable parameters of LoRA on every matrix of attention and dense MLP (arXiv:2106.09685)."""
    return rank * counts.adapter_edges_per_layer * counts.num_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """What one rank's stage and tensor-parallel part would hold without data-parallel sharding."""

    layers: float
    """Number of layers of this stage."""
    dense: float
    """Parameters of its layers outside routed experts."""
    experts: float
    """Of its routed experts, after expert parallelism."""
    root: float
    """Embedding and head that lie here."""
    head: float
    """The part of root that the loss needs."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.experts + self.root

    @property
    def one_layer(self) -> float:
        """Parameters of one layer here."""
        return (self.dense + self.experts) / self.layers if self.layers else 0.0


def rank_parameters(counts: ParameterCounts, layout: Layout, stage: int) -> RankParameters:
    """Return the parameters of pipeline stage ``stage``; even stages count as the fullest, of ceil(layers / stages).

    A tied matrix stands on the first and the last stage (Megatron-LM keeps both in step).
    """
    tensor, stages = layout.tensor_parallel_degree, layout.pipeline_parallel_degree
    layers = layout.stage_layers[stage] if layout.stage_layers else -(-counts.num_layers // stages)
    first, last = stage == 0, stage == stages - 1
    tied = counts.head == 0 and counts.num_layers > 0
    head = (counts.embedding if tied else counts.head) if last else 0.0
    root = (counts.embedding if first else 0.0) + (0.0 if tied and first else head)
    return RankParameters(
        layers=layers,
        dense=layers * (counts.per_layer - counts.experts_per_layer) / tensor,
        experts=layers * counts.experts_per_layer / tensor / layout.expert_parallel_degree,
        root=root / tensor,
        head=head / tensor,
    )
