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
from stratadvisor.costs.moments import Alive
from stratadvisor.costs.parameters import RankParameters
from stratadvisor.costs.states import Recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.profile import DeviceKind
from stratadvisor.schema.workload import ModelShape

ACTIVATIONS, GATHERED = 1, 3
"""Where activations and gathered units stand in ``Alive``."""
KEPT_FRACTION, PASSING_FRACTION = 0.02, 0.10
"""Held beyond what is allocated, of states and gradients (the same sizes in every step: rounding to 2 MiB) and of what
comes and goes (tails of split blocks, other sizes at every moment) (fit)."""
MEGATRON_PASSING_FRACTION = 0.03
"""The same of the activations of Megatron-LM's layers without checkpointing: every micro-batch asks for the same sizes
in the same order, and nothing is computed again between them (fit; one source). The more checkpointing takes away, the
nearer to the usual share."""
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
) -> float:
    """Return what the allocator cannot give back at a moment with ``alive`` beside the states.

    ``whole_activations`` are Megatron-LM's bytes of them without checkpointing, None with other layers.
    """
    kept, passing = states.weights + states.states + states.adapters + alive[0], sum(alive) - alive[0]
    if device_kind != "cpu":
        found = KEPT_FRACTION * kept + PASSING_FRACTION * passing
        if whole_activations:
            share = min(1.0, alive[ACTIVATIONS] / whole_activations)
            found -= share * (PASSING_FRACTION - MEGATRON_PASSING_FRACTION) * alive[ACTIVATIONS]
        return found
    copies = CPU_KEPT_BYTES.get(layout.engine, 0.0) * local.total
    return CPU_RESERVE_FRACTION * (kept + passing + states.host) + copies


def stranded_bytes(
    shape: ModelShape, layout: Layout, kinds: Recipe, local: RankParameters, states: Held, found: dict[str, Alive]
) -> dict[str, float]:
    """Return, for each moment, the freed blocks that its tensors do not fit into; the allocator could give them back.

    loss: the 16-bit scores, too small for the fp32 ones, and what checkpointed layers freed, each smaller than the
    scores of a large vocabulary. DeepSpeed's optimizer step: its flat copies of the gradients are larger than any
    activation, so either both or none of the two sets of blocks is the peak. FSDP: units are gathered on a
    stream of their own, and a block freed on one stream is not used on another.
    """
    stranded = dict.fromkeys(found, 0.0)
    if shape.is_transformer and "loss forward" in found:
        scores, layers = _freed_before_the_loss(shape, layout, kinds)
        stranded["loss forward"], stranded["loss backward"] = layers, scores + layers
    if layout.engine == "fsdp2":
        most = max(gathered_bytes(local, layout, kinds, moment) for moment in FORWARD_MOMENTS)
        for name, alive in found.items():
            stranded[name] += max(0.0, most - alive[GATHERED])
    if layout.engine == "deepspeed" and states.step_copy:
        for name in found:
            stranded[name] += states.step_copy
        stranded["optimizer"] = max(sum(alive[1:]) for name, alive in found.items() if name != "optimizer")
    return stranded


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
