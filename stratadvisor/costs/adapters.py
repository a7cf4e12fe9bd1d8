"""LoRA and QLoRA: a frozen base in 16 or 4 bits, and small trained matrices beside it."""

from __future__ import annotations

from stratadvisor.costs.parameters import ParameterCounts, RankParameters, adapter_parameters
from stratadvisor.costs.states import NF4_BYTES, NF4_PLAIN_BYTES, Recipe
from stratadvisor.schema.layout import Layout


def base_bytes_per_parameter(counts: ParameterCounts, local: RankParameters, layout: Layout, recipe: Recipe) -> float:
    """Return bytes per parameter of the weights; of a frozen base, averaged over what is 4-bit, 16-bit and fp32.

    The runtime stores the adapted matrices of a frozen base in 16 bits (LoRA) or NF4 (QLoRA), and stacked experts,
    which get no adapters, in 16 bits; embedding, head and norms stay as they are.
    """
    if layout.method == "full" or not counts.adapted_per_layer or not local.total:
        return recipe.weight
    adapted = min(1.0, local.layers * counts.adapted_per_layer / layout.tensor_parallel_degree / local.total)
    small = float(recipe.compute)
    if layout.method == "qlora":
        small = NF4_BYTES if layout.double_quantized else NF4_PLAIN_BYTES
    experts = min(1 - adapted, local.experts / local.total)
    return adapted * small + experts * recipe.compute + (1 - adapted - experts) * recipe.weight


def whole_scale_bytes(counts: ParameterCounts, local: RankParameters, layout: Layout, ranks: int) -> float:
    """Return what the scales of 4-bit weights take beyond their part: they are no parameters, so nothing divides them.

    Args:
        counts: of the model.
        local: of the rank.
        layout: its method and quantisation.
        ranks: among which the weights are divided.

    """
    if layout.method != "qlora":
        return 0.0
    each = (NF4_BYTES if layout.double_quantized else NF4_PLAIN_BYTES) - 0.5
    adapted = min(local.total, local.layers * counts.adapted_per_layer / layout.tensor_parallel_degree)
    return each * adapted * (1 - 1 / ranks)


def trained_parameters(counts: ParameterCounts, local: RankParameters, layout: Layout) -> float:
    """Return the parameters with gradients and optimizer states on this rank, before sharding."""
    if layout.method == "full":
        return local.total
    return adapter_parameters(counts, layout.lora_rank) / layout.model_parallel_degree * layout.context_parallel_degree


def unpacked_bytes(counts: ParameterCounts, layout: Layout, recipe: Recipe) -> float:
    """Return the one 4-bit matrix that is unpacked to 16 bits while it is used."""
    if layout.method != "qlora" or not counts.adapter_edges_per_layer:
        return 0.0
    largest = min(counts.adapted_per_layer, counts.largest_matrix)
    return largest * max(2, recipe.compute)


def frozen_head_bytes(local: RankParameters, layout: Layout, recipe: Recipe) -> float:
    """Return the 16-bit copy of a frozen fp32 head that autocast keeps for the gradient of its input."""
    return recipe.compute * local.head if layout.method != "full" and recipe.autocast else 0.0
