"""Facts about keeping devices in step: exposed communication, what hides an exchange, stragglers, staleness."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.costs.changing import Waiting, expected_maximum, lockstep_seconds, within
from stratadvisor.derive.context import Context, fastest, known, spec, unknown, worst_origin
from stratadvisor.derive.interconnect_facts import inter_node
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.layout import Candidate, Layout

SPECS = (
    spec(
        "sync.exposed_communication_fraction",
        "number",
        "fraction",
        "share of a step in which the best configuration that keeps most devices in step, with equal or unequal shares,"
        " waits for communication",
    ),
    spec(
        "sync.best_exposed_communication_fraction",
        "number",
        "fraction",
        "the same in the exact configuration that finishes first, which may leave devices out",
    ),
    spec(
        "sync.uneven_gain",
        "number",
        "fraction",
        "how much sooner the cluster finishes with shares by speed than with equal ones (0.2: 20 %)",
    ),
    spec("sync.tokens_per_exchange", "number", "count", "tokens per device in the micro-batch whose backward hides it"),
    spec(
        "sync.hiding_tokens",
        "number",
        "count",
        "D*: tokens per device whose backward pass lasts as long as one gradient exchange,"
        " (n-1)/n x bytes per gradient x achieved FLOP/s / (2 x bus bandwidth)",
    ),
    spec("sync.tokens_per_exchange_ratio", "number", "ratio", "tokens per exchange over D*; from 1 it hides"),
    spec(
        "sync.straggler_slowdown",
        "number",
        "ratio",
        "expected time of the slowest of n devices over the mean: 1 + variation x the expected largest of n"
        " normal numbers, times what waiting for nodes costs whose speed changes in phases",
    ),
    spec(
        "async.expected_staleness_steps",
        "number",
        "count",
        "mean delay of a gradient with one always busy worker per device: the number of workers less one",
    ),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    even = fastest(context.widest("synchronous"))
    uneven = fastest(context.widest("uneven_synchronous"))
    best = fastest(context.widest("synchronous", "uneven_synchronous"))
    yield _exposed("sync.exposed_communication_fraction", best)
    first = fastest(context.of_family("synchronous", "uneven_synchronous"))
    yield _exposed("sync.best_exposed_communication_fraction", first)
    if even is None or uneven is None or uneven.run_seconds.likely <= 0:
        yield unknown("sync.uneven_gain", f"no {'even' if even is None else 'uneven'} configuration fits")
    else:
        gain = even.run_seconds.likely / uneven.run_seconds.likely - 1
        yield known("sync.uneven_gain", gain, "estimated", f"{uneven.variant} beside {even.variant}")
    whole = (c for c in context.widest("synchronous", "uneven_synchronous") if c.layout.model_parallel_degree == 1)
    yield from _hiding(fastest(whole), context)
    yield _straggler(context)
    devices = context.cluster.num_devices
    if devices < 2:
        yield unknown("async.expected_staleness_steps", "one worker has nobody to be late for")
    else:
        yield known("async.expected_staleness_steps", devices - 1, "estimated", f"{devices} workers")


def _exposed(name: str, candidate: Candidate | None) -> Fact:
    if candidate is None:
        return unknown(name, "no synchronous configuration of several devices fits")
    because = f"{candidate.strategy}, {candidate.variant}, {candidate.num_devices} devices"
    return known(name, candidate.time.exposed_communication_fraction, "estimated", because)


def _hiding(candidate: Candidate | None, context: Context) -> Iterator[Fact]:
    names = ("sync.tokens_per_exchange", "sync.hiding_tokens", "sync.tokens_per_exchange_ratio")
    reason = ""
    if candidate is None:
        reason = "no synchronous configuration fits"
    elif context.cluster.num_devices < 2:
        reason = "one device exchanges nothing"
    elif context.workload.method != "full":
        reason = "with adapters few gradients are exchanged, so that the rule for full training does not apply"
    if reason or candidate is None:
        for name in names:
            yield unknown(name, reason)
        return
    tokens = min(s.micro_batch_size for s in candidate.shares) * candidate.layout.sequence_length
    yield known(names[0], tokens, "estimated", candidate.variant)
    bandwidth, where = _bus_bandwidth(context)
    busy = max(s.compute_seconds for s in candidate.shares)
    if bandwidth.value is None or busy <= 0:
        why = bandwidth.because or "the compute time is not known"
        yield unknown(names[1], why)
        yield unknown(names[2], why)
        return
    n = candidate.num_devices
    achieved = candidate.time.model_flops_per_step / n / busy
    hiding = (n - 1) / n * gradient_bytes(candidate.layout) * achieved / (2 * float(bandwidth.value))
    origin = worst_origin(["estimated", bandwidth.origin])
    yield known(names[1], hiding, origin, f"bus bandwidth {where}, {achieved:.3g} FLOP/s per device")
    if hiding > 0:
        yield known(names[2], tokens / hiding, origin)
    else:
        yield unknown(names[2], "no FLOPs are known for this model")


def gradient_bytes(layout: Layout) -> int:
    """Return bytes per exchanged gradient element.

    DDP keeps fp32 parameters under autocast, so it reduces fp32; sharding engines reduce in the compute precision.
    """
    return 4 if layout.precision == "fp32" or layout.engine in ("torch", "ddp") else 2


def _bus_bandwidth(context: Context) -> tuple[Fact, str]:
    if context.cluster.num_nodes > 1:
        return inter_node(context), "between nodes"
    rates = [c.intra_node_bytes_per_second for c in context.cluster.classes]
    name = "interconnect.intra_node_bytes_per_second"
    if not rates or rates[0] is None:
        return unknown(name, "the rate inside the node was not measured"), "inside the node"
    return known(name, rates[0], "estimated"), "inside the node"


def _straggler(context: Context) -> Fact:
    name, cluster = "sync.straggler_slowdown", context.cluster
    found = [within(c.speed_variation, c.speed_levels) for c in cluster.classes if c.speed_variation is not None]
    if cluster.num_devices < 2:
        return unknown(name, "one device waits for nobody")
    if not found:
        return unknown(name, "speed over time was not measured")
    slowdown = 1 + max(found) * expected_maximum(cluster.num_devices)
    detail = f"variation {max(found):.3g} over {cluster.num_devices} devices"
    if any(c.speed_levels for c in cluster.classes):
        phases = lockstep_seconds(
            [
                Waiting(num_nodes=c.num_nodes, changing_seconds=1.0, constant_seconds=0.0, levels=c.speed_levels)
                for c in cluster.classes
            ]
        )
        slowdown *= phases
        detail += f", times {phases:.3g} for phases in which a node is slower than its mean"
    return known(name, slowdown, "estimated", detail)
