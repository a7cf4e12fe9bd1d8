"""Facts about the links inside and between nodes."""

from __future__ import annotations

from collections.abc import Iterator

from stratadvisor.derive.context import Context, known, spec, tightest, unknown, worst_origin
from stratadvisor.schema.base import Origin
from stratadvisor.schema.facts import Fact

SPECS = (
    spec(
        "interconnect.inter_node_bytes_per_second",
        "number",
        "bytes_per_second",
        "bus bandwidth of collectives between nodes, per node, one direction",
    ),
    spec(
        "interconnect.intra_node_bytes_per_second",
        "number",
        "bytes_per_second",
        "bus bandwidth of collectives inside a node, per device, one direction (slowest class)",
    ),
    spec(
        "interconnect.inter_to_intra_ratio",
        "number",
        "ratio",
        "bus bandwidth between nodes over the one inside a node",
    ),
    spec(
        "interconnect.reported_only",
        "boolean",
        "",
        "whether the rate between nodes is the line rate that an interface reports, not a measured one",
    ),
    spec("interconnect.nvlink_everywhere", "boolean", "", "whether NVLink joins all devices of every node"),
)


def derive(context: Context) -> Iterator[Fact]:
    """Yield the facts of ``SPECS``."""
    cluster = context.cluster
    inter = inter_node(context)
    intra = tightest(
        "interconnect.intra_node_bytes_per_second",
        [c for c in cluster.classes if c.devices_per_node > 1],
        lambda c: c.intra_node_bytes_per_second,
        "intra_node_bytes_per_second",
        "no node has several devices, or the rate was not measured",
    )
    yield inter
    yield intra
    ratio = "interconnect.inter_to_intra_ratio"
    if isinstance(inter.value, float) and isinstance(intra.value, float) and intra.value > 0:
        yield known(ratio, inter.value / intra.value, worst_origin([inter.origin, intra.origin]))
    else:
        missing = inter if inter.value is None else intra
        yield unknown(ratio, missing.because or "the rate inside a node is zero")
    reported = "interconnect.reported_only"
    if inter.value is None:
        yield unknown(reported, inter.because)
    else:
        yield known(reported, inter.origin == "reported", inter.origin)
    everywhere = "interconnect.nvlink_everywhere"
    flags = [c.nvlink for c in cluster.classes if c.devices_per_node > 1]
    if False in flags:
        yield known(everywhere, False, "reported")
    elif None in flags or not flags:
        yield unknown(everywhere, "no node has several devices, or their links are not known")
    else:
        yield known(everywhere, True, "reported")


def inter_node(context: Context) -> Fact:
    """Return the bus bandwidth between nodes; unknown for a single node."""
    cluster, name = context.cluster, "interconnect.inter_node_bytes_per_second"
    if cluster.num_nodes < 2:
        return unknown(name, "there is one node only")
    if cluster.inter_node_bytes_per_second is None:
        return unknown(name, "the rate between nodes was neither measured nor declared")
    origin: Origin = cluster.origins.get("inter_node_bytes_per_second", "estimated")
    return known(name, cluster.inter_node_bytes_per_second, worst_origin([origin]))
