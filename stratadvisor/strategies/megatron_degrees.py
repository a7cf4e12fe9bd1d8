"""Which degrees of tensor, pipeline, context and expert parallelism Megatron-LM can give a model on some nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.workload import ModelShape, Workload
from stratadvisor.strategies.batches import divisors

LONG_SEQUENCE = 8192
"""Tokens of one sequence from which dividing it is tried: shorter ones fit beside tensor parallelism; our choice."""
SHORTEST_PART = 2048
MOST_STAGES, MOST_CONTEXT, MOST_TENSOR = 64, 32, 8
MOST_CHUNKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """One way to divide a model."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage where the first and the last have fewer; empty: all alike."""

    @property
    def together(self) -> int:
        """Devices that work on the same sequences."""
        return self.tensor * self.pipeline * self.context

    def chunks(self, num_layers: int) -> list[int]:
        """Return numbers of pieces (interleaved schedule) that a stage's layers can be cut into, 1 first."""
        if self.pipeline == 1:
            return [1]
        if not self.stage_layers:
            layers = num_layers // self.pipeline
        elif self.counts_ends(num_layers):
            layers = (num_layers + 2) // self.pipeline
        else:
            return [1]
        return [c for c in divisors(layers) if c <= MOST_CHUNKS]

    def counts_ends(self, num_layers: int) -> bool:
        """Whether stages are alike once the embedding and the output projection count as layers."""
        return bool(self.stage_layers) and (num_layers + 2) % self.pipeline == 0


def degrees(cluster: Cluster, workload: Workload) -> Iterator[Degrees]:
    """Yield every valid combination that divides something; devices that are left over become data parallel.

    Tensor-parallel ranks share a node. Stages have equally many layers, or the first and the last have fewer, as
    Megatron-LM's --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split (one less each), or
    --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers make them.
    """
    shape = workload.model
    per_node, devices = cluster.classes[0].devices_per_node, cluster.num_devices
    for tensor in _powers(min(MOST_TENSOR, per_node)):
        if per_node % tensor or not _tensor_divides(shape, workload.sequence_length, tensor):
            continue
        for stages in range(1, min(MOST_STAGES, devices // tensor, shape.num_layers) + 1):
            split = _stage_layers(shape.num_layers, stages)
            if split is None or devices % (tensor * stages):
                continue
            for context in _contexts(shape, workload.sequence_length, devices // (tensor * stages)):
                rest = devices // (tensor * stages)
                for expert in _experts(shape, rest):
                    if tensor * stages * context * expert > 1:
                        yield Degrees(
                            tensor=tensor, pipeline=stages, context=context, expert=expert, stage_layers=split
                        )


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length())]


def _tensor_divides(shape: ModelShape, sequence_length: int, tensor: int) -> bool:
    numbers = (shape.num_attention_heads, shape.num_key_value_heads, shape.ffn_hidden_size, sequence_length)
    dense = shape.dense_ffn_hidden_size if shape.num_dense_layers else 0
    return all(number % tensor == 0 for number in (*numbers, dense))


def _stage_layers(num_layers: int, stages: int) -> tuple[int, ...] | None:
    """Return () for equal stages, the layers of unequal ones, None where neither works out."""
    if num_layers % stages == 0:
        return ()
    each = -(-num_layers // stages)
    ends = num_layers - each * (stages - 2)
    if stages < 3 or not 2 <= ends <= 2 * each:
        return None
    return (ends - ends // 2, *(each,) * (stages - 2), ends // 2)


def _contexts(shape: ModelShape, sequence_length: int, rest: int) -> list[int]:
    if sequence_length <= LONG_SEQUENCE:
        return [1]
    return [c for c in _powers(min(MOST_CONTEXT, rest)) if rest % c == 0 and sequence_length // c >= SHORTEST_PART]


def _experts(shape: ModelShape, rest: int) -> list[int]:
    """Return by how many ranks experts can be divided: powers of two among those that data and context leave."""
    if not shape.num_experts:
        return [1]
    return [e for e in _powers(min(shape.num_experts, rest)) if shape.num_experts % e == 0 and rest % e == 0]
