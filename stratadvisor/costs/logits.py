"""The output scores and their loss: often the peak of small models with large vocabularies."""

from __future__ import annotations

from stratadvisor.costs.activations import in_megatron, norm_extra_bytes
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

BACKWARD_BYTES = 12
"""Per score in eager PyTorch: log-probabilities, their gradient and the gradient of the scores, all fp32."""
MEGATRON_BYTES = 10
"""Per score of a rank's part of the vocabulary: 16-bit scores, an fp32 copy, exponentials reused for the gradient."""


def score_bytes(shape: ModelShape, layout: Layout, recipe: Recipe, tokens: float) -> tuple[float, float]:
    """Return (in forward, at the start of backward) bytes of scores and loss for ``tokens`` tokens of this rank."""
    scores = tokens * shape.num_outputs / layout.tensor_parallel_degree
    hidden = tokens * shape.hidden_size * (recipe.residual + recipe.compute)
    hidden += tokens * norm_extra_bytes(shape, layout, recipe)
    if in_megatron(layout):
        each = MEGATRON_BYTES if recipe.compute == 2 else BACKWARD_BYTES
        return hidden + each * scores, hidden + each * scores
    forward = 8 + (2 if recipe.compute == 2 else 0)
    return hidden + forward * scores, hidden + BACKWARD_BYTES * scores
