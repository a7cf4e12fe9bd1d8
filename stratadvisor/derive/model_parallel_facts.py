"""Facts about dividing layers among devices: tensor, pipeline, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import EXACT, Context, fastest, known, spec, unknown
from stratadvisor.derive.memory_facts import divides_layers
from stratadvisor.schema.facts import Fact
from stratadvisor.strategies.run_length import base_batch

SPECS = (
    spec("model_parallel.feasible", "boolean", "", "whether a configuration with layers divided among devices fits"),
    spec(
        "model_parallel.relative_time",
        "number",
        "ratio",
        "predicted time to the target of the best configuration with divided layers over the best exact one with whole"
        " layers, offload included",
    ),
    spec(
        "model_parallel.best_strategy",
        "text",
        "",
        "the strategy of that configuration: tp_fsdp2 (the bundle's own program) or megatron_3d (Megatron-LM)",
    ),
    spec(
        "model_parallel.sequences_per_device",
        "number",
        "ratio",
        "sequences of a step, as asked for or as wished, over the devices: below 1 data parallelism alone leaves some"
        " idle or needs a larger batch than wished",
    ),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    exact = context.of_family(*EXACT)
    divided, whole = (fastest(c for c in exact if divides_layers(c.layout) == wanted) for wanted in (True, False))
    reasons = [c.infeasible_reason for c in context.candidates if divides_layers(c.layout) and not c.feasible]
    why = reasons[0] if reasons else "no way of dividing layers applies to this model and these devices"
    yield known("model_parallel.feasible", divided is not None, "estimated", "" if divided is not None else why)
    if divided is None:
        yield unknown("model_parallel.relative_time", why)
        yield unknown("model_parallel.best_strategy", why)
    else:
        if whole is None or whole.run_seconds.likely <= 0:
            yield unknown("model_parallel.relative_time", "no exact method with whole layers fits to compare with")
        else:
            yield known(
                "model_parallel.relative_time",
                divided.run_seconds.likely / whole.run_seconds.likely,
                "estimated",
                f"{divided.strategy}, {divided.variant}, beside {whole.strategy}, {whole.variant}",
            )
        yield known("model_parallel.best_strategy", divided.strategy, "estimated", divided.variant)
    if not context.cluster.num_devices:
        yield unknown("model_parallel.sequences_per_device", "there is no device")
        return
    ratio = base_batch(context.workload) / context.cluster.num_devices
    asked = context.workload.global_batch_size is not None
    yield known("model_parallel.sequences_per_device", ratio, "declared" if asked else "estimated")
