"""FLOPs of a model: what it must compute, without recomputation. One multiply-add is two.

Causal attention counts half of the score matrix (``CAUSAL_SHARE``), since fused kernels skip the masked half; sources
that count it whole (llm-foundry, NeMo) print a higher utilisation for the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from stratadvisor.schema.workload import Method, ModelShape

CAUSAL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Product:
    """A weight matrix that every token (or a share of them) is multiplied with."""

    out_width: int
    in_width: int
    count: int
    tokens_share: float = 1.0
    """Rows per token of the micro-batch: below 1 for one expert of many."""
    column_parallel: bool = True
    """Tensor parallelism divides the output (True) or the input width."""
    mlp: bool = False
    router: bool = False
    """Scores the experts: small, and never in fewer than 16 bit."""


def attention_share(shape: ModelShape) -> float:
    """Return the share of the score matrix that is computed: half for causal models, all for encoders."""
    return CAUSAL_SHARE if shape.family == "decoder" else 1.0


def _mlp(shape: ModelShape, width: int, count: int, share: float) -> tuple[Product, ...]:
    up = (2 if shape.gated_mlp else 1) * count
    return (
        Product(width, shape.hidden_size, up, share, mlp=True),
        Product(shape.hidden_size, width, count, share, column_parallel=False, mlp=True),
    )


@lru_cache(maxsize=256)
def _products(shape_key: _ShapeKey) -> tuple[tuple[tuple[Product, ...], int], ...]:
    shape = shape_key.shape
    attention = (
        Product(shape.attention_width + 2 * shape.key_value_width, shape.hidden_size, 1),
        Product(shape.hidden_size, shape.attention_width, 1, column_parallel=False),
    )
    if shape.num_experts == 0:
        return (((*attention, *_mlp(shape, shape.ffn_hidden_size, 1, 1.0)), shape.num_layers),)
    routed = _mlp(
        shape, shape.ffn_hidden_size, shape.num_experts, shape.num_experts_per_token / max(1, shape.num_experts)
    )
    shared = _mlp(shape, shape.ffn_hidden_size, shape.num_shared_experts, 1.0) if shape.num_shared_experts else ()
    router = (Product(shape.num_experts, shape.hidden_size, 1, router=True),)
    sparse = (*attention, *router, *routed, *shared)
    dense = (*attention, *_mlp(shape, shape.dense_ffn_hidden_size or shape.ffn_hidden_size, 1, 1.0))
    kinds = ((sparse, shape.num_layers - shape.num_dense_layers), (dense, shape.num_dense_layers))
    return tuple((products, layers) for products, layers in kinds if layers > 0)


class _ShapeKey:
    """A shape compared by identity: hashing thirty fields would cost more than the formula."""

    __slots__ = ("shape",)

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape

    def __hash__(self) -> int:
        return id(self.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ShapeKey) and other.shape is self.shape


def layer_products(shape: ModelShape) -> tuple[tuple[tuple[Product, ...], int], ...]:
    """Return the weight products of each kind of layer, and how many layers are of that kind."""
    return _products(_ShapeKey(shape))


def forward_linear_flops_per_token(shape: ModelShape) -> float:
    """Return the FLOPs of all weight products for one token, the output projection included."""
    total = 0.0
    for products, layers in layer_products(shape):
        total += layers * sum(2.0 * p.out_width * p.in_width * p.count * p.tokens_share for p in products)
    return total + 2.0 * shape.hidden_size * shape.num_outputs


def forward_attention_flops_per_sequence(shape: ModelShape, sequence_length: int) -> float:
    """Return the FLOPs of scores and their product with the values, for one sequence."""
    return 4.0 * sequence_length**2 * shape.attention_width * attention_share(shape) * shape.num_layers


def model_flops_per_sequence(shape: ModelShape, sequence_length: int, method: Method = "full") -> float:
    """Return forward and backward FLOPs of one sequence (one item for the family ``module``).

    Full training: three times the forward pass. With adapters the frozen weights need no weight gradient, so their
    backward costs one forward; attention has no weights and keeps its two.
    """
    backward_linear = 2.0 if method == "full" else 1.0
    if not shape.is_transformer:
        forward = shape.flops_per_item if shape.flops_per_item is not None else 2.0 * shape.num_active_parameters
        return forward * (1.0 + backward_linear)
    linear = forward_linear_flops_per_token(shape) * sequence_length
    attention = forward_attention_flops_per_sequence(shape, sequence_length)
    return linear * (1.0 + backward_linear) + attention * 3.0
