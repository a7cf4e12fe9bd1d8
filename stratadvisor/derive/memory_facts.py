"""Facts about memory: what the tightest device needs over what it has, by how far states are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stratadvisor.derive.context import EXACT, Context, fastest, known, spec, unknown
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.layout import Candidate, Layout

SPECS = (
    spec(
        "memory.replica_fit_ratio",
        "number",
        "ratio",
        "peak memory with a whole replica on each device (high end of the prediction) over what is free, in the"
        " configuration that needs least, on its tightest device; up to 1 fits",
    ),
    spec("memory.state_sharded_fit_ratio", "number", "ratio", "the same with optimizer states (and gradients) divided"),
    spec("memory.fully_sharded_fit_ratio", "number", "ratio", "the same with parameters divided as well"),
    spec(
        "memory.model_parallel_fit_ratio",
        "number",
        "ratio",
        "the same with layers divided among devices (tensor, pipeline, context or expert parallel) and states among the"
        " rest; the three above keep layers whole",
    ),
    spec("memory.without_offload_fit_ratio", "number", "ratio", "the least of the four: nothing in host memory"),
    spec("memory.offload_fit_ratio", "number", "ratio", "the same with optimizer or parameters in host memory"),
    spec(
        "memory.offload_host_fit_ratio",
        "number",
        "ratio",
        "host memory that the least demanding offload takes over what a node has, where the device fits",
    ),
    spec("offload.feasible", "boolean", "", "whether an exact configuration with states in host memory fits"),
    spec(
        "offload.relative_time",
        "number",
        "ratio",
        "predicted time to the target of the best exact configuration with offload over the best without",
    ),
    spec(
        "memory.without_checkpointing_fit_ratio",
        "number",
        "ratio",
        "the same as without_offload_fit_ratio, no activation recomputed",
    ),
    spec(
        "checkpointing.relative_time",
        "number",
        "ratio",
        "predicted time to the target of the best configuration that recomputes activations over the best without",
    ),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    resident = [
        _fit(
            context,
            "memory.replica_fit_ratio",
            "replica",
            lambda layout: layout.sharding == "none" and not divides_layers(layout),
        ),
        _fit(
            context,
            "memory.state_sharded_fit_ratio",
            "configuration with divided optimizer states",
            lambda layout: layout.sharding in ("optimizer", "gradients") and not divides_layers(layout),
        ),
        _fit(
            context,
            "memory.fully_sharded_fit_ratio",
            "configuration with divided parameters",
            lambda layout: layout.sharding == "parameters" and not divides_layers(layout),
        ),
        _fit(context, "memory.model_parallel_fit_ratio", "configuration with divided layers", divides_layers),
    ]
    yield from resident
    least = min((f for f in resident if f.value is not None), key=lambda f: float(f.value or 0), default=None)
    name = "memory.without_offload_fit_ratio"
    yield unknown(name, resident[0].because) if least is None else known(name, least.value, "estimated", least.because)
    yield _fit(context, "memory.offload_fit_ratio", "offload", lambda layout: True, offload=True)
    yield _host_fit(context)
    yield from _offload_time(context)
    yield _fit(
        context,
        "memory.without_checkpointing_fit_ratio",
        "configuration without recomputation",
        lambda layout: layout.activation_checkpointing == "none",
    )
    yield _checkpointing_time(context)


def offloads(layout: Layout) -> bool:
    """Whether anything lives in host memory."""
    return layout.optimizer_offload != "none" or layout.parameter_offload != "none"


def divides_layers(layout: Layout) -> bool:
    """Whether several devices work on the same sequences, or hold different experts."""
    return layout.model_parallel_degree > 1 or layout.expert_parallel_degree > 1


def fit_ratio(context: Context, candidate: Candidate) -> float | None:
    """Return needed (high end) over usable memory on the tightest device; None when a device's memory is unknown."""
    ratios: list[float] = []
    for share in candidate.shares:
        usable = context.classes[share.node_class].device.usable_memory_bytes
        if not usable:
            return None
        ratios.append(share.memory.peak_bytes.high / usable)
    return max(ratios, default=None)


def _fit(context: Context, name: str, what: str, wanted: Callable[[Layout], bool], *, offload: bool = False) -> Fact:
    chosen = [c for c in context.candidates if wanted(c.layout) and offloads(c.layout) == offload]
    if not chosen:
        return unknown(name, f"no {what} applies to this cluster and workload")
    found = [(ratio, c) for c in chosen if (ratio := fit_ratio(context, c)) is not None]
    if not found:
        return unknown(name, "the memory of a device is not known")
    least, at = min(found, key=lambda pair: pair[0])
    return known(name, least, "estimated", f"{at.strategy}, {at.variant}")


def _host_fit(context: Context) -> Fact:
    name = "memory.offload_host_fit_ratio"
    found: list[tuple[float, str]] = []
    for candidate in context.candidates:
        device = fit_ratio(context, candidate)
        if not offloads(candidate.layout) or device is None or device > 1:
            continue
        ratios: list[float] = []
        for share in candidate.shares:
            host = context.classes[share.node_class].host_memory_bytes
            if not host:
                return unknown(name, f"host memory of {share.node_class} is not known")
            ratios.append(share.memory.host_bytes_per_rank * share.devices_per_node / host)
        found.append((max(ratios), f"{candidate.strategy}, {candidate.variant}"))
    if not found:
        return unknown(name, "no offload leaves a device with enough memory")
    least, at = min(found)
    return known(name, least, "estimated", at)


def _offload_time(context: Context) -> Iterator[Fact]:
    exact = context.of_family(*EXACT)
    moved, kept = (fastest(c for c in exact if offloads(c.layout) == wanted) for wanted in (True, False))
    yield known("offload.feasible", moved is not None, "estimated")
    name = "offload.relative_time"
    if moved is None or kept is None or kept.run_seconds.likely <= 0:
        yield unknown(name, f"nothing fits {'with' if moved is None else 'without'} offload")
        return
    ratio = moved.run_seconds.likely / kept.run_seconds.likely
    yield known(name, ratio, "estimated", f"{moved.strategy} {moved.variant} beside {kept.strategy} {kept.variant}")


def _checkpointing_time(context: Context) -> Fact:
    name = "checkpointing.relative_time"
    with_it = fastest(c for c in context.feasible if c.layout.activation_checkpointing != "none")
    without = fastest(c for c in context.feasible if c.layout.activation_checkpointing == "none")
    if with_it is None or without is None or without.run_seconds.likely <= 0:
        return unknown(name, f"nothing fits {'with' if with_it is None else 'without'} recomputation")
    return known(
        name,
        with_it.run_seconds.likely / without.run_seconds.likely,
        "estimated",
        f"{with_it.strategy} {with_it.variant} beside {without.strategy} {without.variant}",
    )
