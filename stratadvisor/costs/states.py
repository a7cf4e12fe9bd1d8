"""Bytes per parameter of weights, gradients and optimizer states, by recipe and engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stratadvisor.costs.parameters import ParameterCounts
from stratadvisor.schema.layout import Layout

AUTOCAST_ENGINES = frozenset({"torch", "ddp", "local", "async"})
"""fp32 weights, cast to 16 bit at each use (torch.autocast)."""
BITSANDBYTES_BLOCK = 256
"""8-bit states have one fp32 scale per block each (arXiv:2110.02861; bitsandbytes)."""
NF4_PACKED_BYTES = 0.5
"""Of a 4-bit weight itself."""
NF4_PLAIN_BYTES = 0.5 + 4 / 64
"""4-bit weights and an fp32 scale per 64 of them."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""4-bit weights, an 8-bit scale per 64 of them, and an fp32 one per 256 scales (arXiv:2305.14314, section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Bytes per parameter."""

    weight: float
    gradient: float
    master: float
    """Further fp32 copy of the weights, kept with the optimizer states."""
    optimizer: float
    compute: int
    """Of one element in matrix products."""
    residual: int
    """Of one element of the residual stream: torch.autocast keeps it in fp32, since the embedding is."""
    autocast: bool

    @property
    def states(self) -> float:
        """What is divided with the optimizer states."""
        return self.master + self.optimizer


def optimizer_bytes(layout: Layout, counts: ParameterCounts, element: float) -> float:
    """Return bytes per trainable parameter of the optimizer's states, which have ``element`` bytes each.

    AdamW two moments; 8-bit AdamW one byte each and scales; Adafactor a row and a column per matrix
    (arXiv:1804.04235); SGD none without momentum, which is the runtime's default; Muon one moment for matrices of
    layers, AdamW for the rest.
    """
    if layout.optimizer == "adamw":
        return 2 * element
    if layout.optimizer == "adamw8bit":
        return 2 * (1 + 4 / BITSANDBYTES_BLOCK)
    if layout.optimizer == "adafactor":
        edge = max(1.0, math.sqrt(counts.largest_matrix))
        return 2 * element / edge
    if layout.optimizer == "sgd":
        return 0.0
    inner = counts.per_layer * counts.num_layers / counts.total
    return element * inner + 2 * element * (1 - inner)


def recipe(layout: Layout, counts: ParameterCounts) -> Recipe:
    """Return the recipe of an engine.

    torch, DDP, local, async: fp32 weights, gradients and states under autocast. FSDP2: the same, divided, with 16-bit
    gathered copies. DeepSpeed: 16-bit weights and gradients, fp32 master and states (Rajbhandari et al.,
    arXiv:1910.02054, section 3; ZeRO with fp32 keeps a second copy of the weights too). Megatron-LM: as DeepSpeed, but
    gradients accumulate in fp32.
    """
    engine, precision = layout.engine, layout.precision
    if precision == "bf16_pure":
        states = optimizer_bytes(layout, counts, 2.0)
        return Recipe(weight=2, gradient=2, master=0, optimizer=states, compute=2, residual=2, autocast=False)
    states = optimizer_bytes(layout, counts, 4.0)
    half = precision != "fp32"
    compute = 2 if half else 4
    if engine in AUTOCAST_ENGINES:
        return Recipe(weight=4, gradient=4, master=0, optimizer=states, compute=compute, residual=4, autocast=half)
    if engine == "fsdp2":
        return Recipe(
            weight=4, gradient=4, master=0, optimizer=states, compute=compute, residual=compute, autocast=False
        )
    if engine == "deepspeed":
        # around a model divided by Megatron-LM, bf16 gradients are summed up in a second, fp32 buffer (BF16_Optimizer)
        summed = 4 if precision == "bf16" and layout.tensor_parallel_degree * layout.pipeline_parallel_degree > 1 else 0
        return Recipe(
            weight=compute,
            gradient=compute + summed,
            master=4 if half or layout.sharding != "none" else 0,
            optimizer=states,
            compute=compute,
            residual=compute,
            autocast=False,
        )
    return Recipe(
        weight=compute,
        gradient=4,
        master=4 if half else 0,
        optimizer=states,
        compute=compute,
        residual=compute,
        autocast=False,
    )


def shard_degrees(layout: Layout) -> tuple[int, int, int]:
    """Return by how many ranks (weights, gradients, optimizer states) are divided."""
    ranks = layout.data_parallel_shard_degree * layout.context_parallel_degree
    if layout.engine == "megatron":
        ranks = layout.data_parallel_degree * layout.context_parallel_degree
    sharding = layout.sharding
    if layout.engine == "fsdp2" and sharding == "none":
        sharding = "parameters"
    return (
        ranks if sharding == "parameters" else 1,
        ranks if sharding in ("parameters", "gradients") else 1,
        ranks if sharding != "none" else 1,
    )
