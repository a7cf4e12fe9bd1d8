"""What an allocator holds beyond what is allocated: rounding, and freed blocks that do not fit what is asked next.

torch's caching allocator (docs "CUDA semantics", memory management) takes a segment of its own from the driver for
every block above 10 MiB and never joins two segments. A tensor larger than every freed block gets a new segment, and
the freed ones stay: what nvidia-smi shows is nearer the sum over sizes of blocks than the largest moment. When the
driver has no more, the allocator gives all freed segments back and asks again, so they never cause an out-of-memory
error by themselves.
"""

from __future__ import annotations

from stratadvisor.costs.activations import in_megatron
from stratadvisor.costs.buffers import FORWARD_MOMENTS, gathered_bytes
from stratadvisor.costs.held import Held
from stratadvisor.costs.logits import RETURNED_BYTES
from stratadvisor.costs.moments import Alive
from stratadvisor.costs.parameters import RankParameters
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.profile import DeviceKind
from stratadvisor.schema.workload import ModelShape

GRADIENTS, ACTIVATIONS, GATHERED = 0, 1, 3
"""Where they stand in ``Alive``."""
KEPT_FRACTION, PASSING_FRACTION = 0.02, 0.10
"""Held beyond what is allocated, of states and gradients (the same sizes in every step: rounding to 2 MiB) and of what
comes and goes (tails of split blocks, other sizes at every moment) (fit)."""
FREE_FRACTION = 0.5
"""The part of the latter that lies in blocks which are free as a whole: runs that fill their card do without."""
UNCOUNTED_FRACTION, UNCOUNTED_FRACTIONS = 0.02, {"megatron": 0.01, "fsdp2": 0.06}
"""Of everything allocated: held besides, for reasons that nobody can count before a run, such as in which order blocks
were freed. Equal runs differ by it, and only upwards from what is counted; so a peak stands at the upper end of what
was seen rather than in its middle (the smallest shares that leave few peaks of published runs above; docs/accuracy.md
says how few)."""
UNITS_IN_FLIGHT = 3
"""Of FullyShardedDataParallel: the unit that runs and two that its rate limiter lets be gathered ahead (torch's
distributed/fsdp/_limiter_utils.py)."""
MEGATRON_PASSING_FRACTION = 0.03
"""The same of the activations of Megatron-LM's layers without checkpointing: every micro-batch asks for the same sizes
in the same order, and nothing is computed again between them (fit; one source). The more checkpointing takes away, the
nearer to the usual share."""
PIPELINE_HOLES_FRACTION = 0.25
"""Freed and not used again, of what checkpointed layers keep for the micro-batches in flight: each kept input lies
among the many blocks of its layer that come and go, and the next micro-batch's blocks do not fit between (fit)."""
CPU_RESERVE_FRACTION = 0.33
"""Freed and not given back to the system by malloc, of everything allocated, when it keeps its blocks as our launchers
ask: 0.26 to 0.44 measured with DDP of 10M and 30M models (torch 2.13, gloo, Linux)."""
CPU_KEPT_BYTES = {"fsdp2": 4.0, "deepspeed": 16.0, "local": 4.0}
"""Per whole parameter on CPUs, further copies that malloc keeps: gathered units and gloo's copies of them (FSDP2),
DeepSpeed's buckets and flat copies (ZeRO-1 of 10M and 30M: 9 and 8 % over, ZeRO-3 of 10M: 12 % under), the flat
vectors of an exchange (DiLoCo)."""


def reserve_bytes(
    local: RankParameters,
    layout: Layout,
    device_kind: DeviceKind,
    states: Held,
    alive: Alive,
    whole_activations: float | None,
) -> tuple[float, float]:
    """Return what the allocator holds at a moment with ``alive`` beside the states: (for good, until memory runs out).

    ``whole_activations`` are Megatron-LM's bytes of them without checkpointing, None with other layers.
    """
    kept, passing = states.weights + states.states + states.adapters + alive[0], sum(alive) - alive[0]
    if device_kind != "cpu":
        tails = PASSING_FRACTION * passing
        if whole_activations:
            share = min(1.0, alive[ACTIVATIONS] / whole_activations)
            tails -= share * (PASSING_FRACTION - MEGATRON_PASSING_FRACTION) * alive[ACTIVATIONS]
        uncounted = UNCOUNTED_FRACTIONS.get("megatron" if in_megatron(layout) else layout.engine, UNCOUNTED_FRACTION)
        return KEPT_FRACTION * kept + (1 - FREE_FRACTION) * tails, FREE_FRACTION * tails + uncounted * (kept + passing)
    copies = CPU_KEPT_BYTES.get(layout.engine, 0.0) * local.total
    return CPU_RESERVE_FRACTION * (kept + passing + states.host) + copies, 0.0


def stranded_bytes(
    shape: ModelShape,
    layout: Layout,
    kinds: Recipe,
    local: RankParameters,
    states: Held,
    found: dict[str, Alive],
    in_flight: float,
) -> dict[str, float]:
    """Return, for each moment, the freed blocks that its tensors do not fit into; the allocator could give them back.

    loss: the 16-bit scores, too small for the fp32 ones, and what checkpointed layers freed, each smaller than the
    scores of a large vocabulary. DeepSpeed's optimizer step: its flat copies of the gradients are larger than any
    activation, so either both or none of the two sets of blocks is the peak. FSDP: units are gathered on a
    stream of their own, divided gradients lie on that of the reduce-scatter (torch's _fsdp_collectives.py), and a block
    freed on one stream is not used on another. Megatron's pipelines: holes between the
    ``in_flight`` bytes that checkpointed layers keep; gradients, whose matrices are larger than the activations of a
    rank's part of a layer and so find no room among those freed.
    """
    holes = PIPELINE_HOLES_FRACTION * in_flight
    stranded = dict.fromkeys(found, holes)
    if shape.is_transformer and "loss forward" in found:
        scores, layers = _freed_before_the_loss(shape, layout, kinds)
        stranded["loss forward"] += layers
        stranded["loss backward"] += scores + layers
        if layout.loss == "returned":
            # the optimizer makes its states while the scores are alive, in blocks that the loss has freed, and the next
            # loss needs another block (half of such runs show it)
            again = RETURNED_BYTES * layout.micro_batch_size * layout.sequence_length * shape.num_outputs
            stranded = {name: freed + again for name, freed in stranded.items()}
    if in_megatron(layout):
        for name, alive in found.items():
            stranded[name] += max(0.0, states.gradients - alive[GRADIENTS])
    if layout.engine == "fsdp2":
        least, most = sorted(gathered_bytes(local, layout, kinds, moment) for moment in FORWARD_MOMENTS)
        if layout.flat_units:  # they differ by a unit
            most = least + (UNITS_IN_FLIGHT - 1) * (most - least)
        for name, alive in found.items():
            stranded[name] += max(0.0, most - alive[GATHERED]) + max(0.0, states.gradients - alive[GRADIENTS])
    if layout.engine == "deepspeed" and states.step_copy:
        for name in found:
            stranded[name] += states.step_copy
        stranded["optimizer"] = holes + max(sum(alive[1:]) for name, alive in found.items() if name != "optimizer")
    return stranded


def wrapping_bytes(local: RankParameters, layout: Layout, kinds: Recipe, unit_bytes_per_parameter: float) -> float:
    """Return what FullyShardedDataParallel leaves and needs beside the states, however small the batch is.

    Each unit is moved to the device and copied into one flat tensor before it is divided
    (torch's distributed/fsdp/_init_utils.py, _flat_param.py), the units gathered later lie on another stream.
    """
    if not layout.flat_units or layout.engine != "fsdp2":
        return 0.0
    layer = unit_bytes_per_parameter * local.one_layer
    root = kinds.weight * local.root
    return 2 * (root + layer) + root + UNITS_IN_FLIGHT * layer


def _freed_before_the_loss(shape: ModelShape, layout: Layout, kinds: Recipe) -> tuple[float, float]:
    """Return the bytes of (16-bit scores, blocks of a checkpointed layer's forward pass)."""
    tokens = layout.micro_batch_size * layout.sequence_length / layout.context_parallel_degree
    vocabulary = shape.num_outputs / layout.tensor_parallel_degree
    scores = 2 * tokens * vocabulary if kinds.compute == 2 else 0.0
    width = kinds.compute * _layer_width(shape, layout)
    if layout.activation_checkpointing != "full" or in_megatron(layout) or 4 * vocabulary <= width:
        return scores, 0.0
    return scores, tokens * ((3 if shape.gated_mlp else 2) * width + 2 * kinds.residual * shape.hidden_size)


def _layer_width(shape: ModelShape, layout: Layout) -> float:
    routed = max(1, shape.num_experts_per_token) + shape.num_shared_experts if shape.num_experts else 1
    return routed * shape.ffn_hidden_size / layout.tensor_parallel_degree
