"""Facts about dividing layers among devices: tensor, pipeline, context and expert parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import EXACT, Context, fastest, known, spec, unknown
from stratadvisor.derive.memory_facts import divides_layers
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.layout import Candidate
from stratadvisor.strategies.run_length import base_batch
from stratadvisor.strategies.worth import compiled_share, is_other_program, needed_share

SPECS = (
    spec("model_parallel.feasible", "boolean", "", "whether a configuration with layers divided among devices fits"),
    spec(
        "model_parallel.relative_time",
        "number",
        "ratio",
        "predicted time to the target of the best configuration with divided layers over the best exact one with whole"
        " layers, offload included; another program's over that one compiled",
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
    whole = fastest(c for c in exact if not divides_layers(c.layout))
    divided = _worthiest([c for c in exact if divides_layers(c.layout)], whole)
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
                divided.run_seconds.likely / (whole.run_seconds.likely * _compiled(divided, whole)),
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


def _worthiest(divided: list[Candidate], whole: Candidate | None) -> Candidate | None:
    """Return the fastest of each program that comes nearest to what it must gain."""
    programs = (fastest(c for c in divided if is_other_program(c) == other) for other in (False, True))
    found = [c for c in programs if c is not None]
    if whole is None:
        return fastest(found)
    return min(found, key=lambda c: c.run_seconds.likely / needed_share(c, whole), default=None)


def _compiled(divided: Candidate, whole: Candidate) -> float:
    return compiled_share(whole) if is_other_program(divided) else 1.0
