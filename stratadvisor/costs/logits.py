"""The output scores and their loss: often the peak of small models with large vocabularies."""

from __future__ import annotations

from stratadvisor.costs.activations import in_megatron, norm_extra_bytes
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

BACKWARD_BYTES = 12
"""Per score in eager PyTorch: log-probabilities, their gradient and the gradient of the scores, all fp32."""
RETURNED_FORWARD_BYTES, RETURNED_BACKWARD_BYTES = 12, 16
"""Per score in transformers until 2024 (models/llama/modeling_llama.py, ``LlamaForCausalLM.forward``): the fp32 scores
that are returned, a copy of them shifted by a token while the loss is computed, and in backward the usual twelve."""
RETURNED_BYTES = 4
"""Of these the scores themselves, which live until the program lets go of what the model returned."""
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
    if layout.loss == "chunked":
        return hidden + recipe.compute * scores, hidden + 2 * recipe.compute * scores
    if layout.loss == "returned":
        return hidden + RETURNED_FORWARD_BYTES * scores, hidden + RETURNED_BACKWARD_BYTES * scores
    forward = 8 + (2 if recipe.compute == 2 else 0)
    return hidden + forward * scores, hidden + BACKWARD_BYTES * scores
