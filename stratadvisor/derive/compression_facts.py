"""Facts about sending gradients in fewer bits: what rounding costs, and from which link rate on it no longer pays."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.costs.collectives import inter_node_bandwidth, intra_node_bandwidth
from stratadvisor.costs.rates import device_rates
from stratadvisor.derive.context import Context, known, spec, unknown
from stratadvisor.schema.facts import Fact

CODEC_PASSES = 3.0
"""Bytes of memory traffic for a byte of fp32 that travels in 16 bit: read 1, write 1/2, then read 1/2, write 1."""
SAVED = 0.5
"""Share of the bytes that 16 bit instead of 32 saves."""
NAMES = (
    "compression.codec_bytes_per_second",
    "compression.break_even_bytes_per_second",
    "compression.break_even_ratio",
)
SPECS = (
    spec(
        NAMES[0],
        "number",
        "bytes_per_second",
        "fp32 gradients that the slowest device rounds to 16 bit and back in a second: memory bandwidth / 3",
    ),
    spec(
        NAMES[1],
        "number",
        "bytes_per_second",
        "bus bandwidth below which sending half as much saves more than rounding takes, where nothing hides:"
        " 2 (n-1)/n x (1 - 1/2) x codec",
    ),
    spec(NAMES[2], "number", "ratio", "bus bandwidth over that rate; below 1 sending fewer bits pays"),
)


def break_even_bytes_per_second(codec_bytes_per_second: float, ranks: int, saved: float = SAVED) -> float:
    """Return the bus bandwidth at which a codec saves as much time on the wire as it takes.

    A ring sends 2 (n-1)/n S bytes over bus bandwidth B; a codec that leaves ``1 - saved`` of them saves
    2 (n-1)/n S saved / B seconds and takes S / codec. Equal at B = 2 (n-1)/n saved codec.
    """
    return 2 * (ranks - 1) / ranks * saved * codec_bytes_per_second


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    cluster = context.cluster
    if cluster.num_devices < 2:
        for name in NAMES:
            yield unknown(name, "one device sends nothing")
        return
    slowest = min(cluster.classes, key=lambda c: device_rates(c.device, "fp32").memory_bytes_per_second)
    codec = device_rates(slowest.device, "fp32").memory_bytes_per_second / CODEC_PASSES
    guessed = slowest.device.memory_bandwidth_bytes_per_second is None
    of_memory = f"the memory of {slowest.device.name}{', whose rate is assumed' if guessed else ''}"
    yield known(NAMES[0], codec, "estimated", of_memory)
    several = cluster.num_nodes > 1
    ranks = cluster.num_nodes if several else cluster.num_devices
    link, assumption = inter_node_bandwidth(cluster) if several else intra_node_bandwidth(cluster)
    limit = break_even_bytes_per_second(codec, ranks)
    yield known(NAMES[1], limit, "estimated", f"{ranks} {'nodes' if several else 'devices'}")
    yield known(NAMES[2], link / limit, "estimated", assumption)
