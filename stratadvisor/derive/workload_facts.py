"""Facts about what is to be trained."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import Context, known, spec, unknown
from stratadvisor.schema.facts import Fact

SMALL_PARAMETERS, LARGE_PARAMETERS = 1e9, 10e9
"""The classes of model scale in which people talk: up to 1B, up to 10B, above."""

SPECS = (
    spec("workload.parameters", "number", "count", "parameters of the model, experts and embeddings included"),
    spec("workload.active_parameters", "number", "count", "parameters that one token passes through"),
    spec("workload.scale", "text", "", "small (up to 1B parameters), medium (up to 10B), large"),
    spec("workload.method", "text", "", "full, lora or qlora"),
    spec("workload.optimizer", "text", "", "adamw, adamw8bit, adafactor, sgd or muon"),
    spec("workload.precision", "text", "", "what the user asked for: auto, fp32, bf16, fp16 or bf16_pure"),
    spec("workload.fp16_overflows", "boolean", "", "whether activations of this kind of model exceed what fp16 holds"),
    spec("workload.max_staleness_steps", "number", "count", "largest gradient delay the user accepts; 0: exact only"),
    spec("workload.data_stays", "boolean", "", "whether each node's data may not leave it"),
    spec("workload.is_transformer", "boolean", "", "whether the model's layers are known, not only its totals"),
    spec("workload.global_batch_size", "number", "count", "sequences per optimizer step that the user asked for"),
    spec("workload.sequence_length", "number", "count", "tokens per sequence"),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    workload = context.workload
    parameters = workload.model.num_parameters
    scale = "small" if parameters <= SMALL_PARAMETERS else "medium" if parameters <= LARGE_PARAMETERS else "large"
    yield known("workload.parameters", parameters, "declared", workload.model.source)
    yield known("workload.active_parameters", workload.model.num_active_parameters, "declared", workload.model.source)
    yield known("workload.scale", scale, "declared")
    yield known("workload.method", workload.method, "declared")
    yield known("workload.optimizer", workload.optimizer, "declared")
    yield known("workload.precision", workload.precision, "declared")
    yield known("workload.fp16_overflows", workload.model.fp16_overflows, "catalog")
    yield known("workload.max_staleness_steps", workload.max_staleness_steps, "declared")
    yield known("workload.data_stays", workload.data_stays, "declared")
    yield known("workload.is_transformer", workload.model.is_transformer, "declared")
    if workload.global_batch_size is None:
        yield unknown("workload.global_batch_size", "not asked for: the planner chooses it")
    else:
        yield known("workload.global_batch_size", workload.global_batch_size, "declared")
    yield known("workload.sequence_length", workload.sequence_length, "declared")
