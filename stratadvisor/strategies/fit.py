"""Memory of one class against what is free there, corrected by what an earlier validation run measured."""

from __future__ import annotations

from dataclasses import replace

from stratadvisor.costs.memory import estimate
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Layout, MemoryEstimate
from stratadvisor.strategies.frozen import with_frozen_memory
from stratadvisor.strategies.site import Share, Site
from stratadvisor.units import format_bytes


def memory_of(at: Site, layout: Layout, node_class: NodeClass, share: Share) -> MemoryEstimate:
    """Return what a device of one class needs, corrected by an earlier validation run where there was one."""
    found = estimate(
        at.workload.model,
        with_share(layout, share),
        device_kind=node_class.device.kind,
        ranks_per_node=node_class.devices_per_node,
        device_memory_bytes=node_class.device.usable_memory_bytes,
    )
    found = with_frozen_memory(found, layout, at.workload)
    ratio = calibration(at.cluster.calibration_memory_ratios, node_class, at.strategy)
    if ratio is None:
        return found
    return replace(
        found,
        terms_bytes={name: value * ratio for name, value in found.terms_bytes.items()},
        peak_bytes=found.peak_bytes.scaled(ratio),
    )


def with_share(layout: Layout, share: Share) -> Layout:
    """Return the layout with the micro-batch and the accumulation of a share; the same object where it has them."""
    micro, steps = share.micro_batch_size, share.gradient_accumulation_steps
    if layout.micro_batch_size == micro and layout.gradient_accumulation_steps == steps:
        return layout
    return replace(layout, micro_batch_size=micro, gradient_accumulation_steps=steps)


def calibration(ratios: dict[tuple[str, str], float], node_class: NodeClass, strategy: str) -> float | None:
    """Return measured over predicted of an earlier run with this device and strategy."""
    for key in (node_class.device.catalog_key, node_class.device.name):
        if key is not None and (key, strategy) in ratios:
            return ratios[key, strategy]
    return None


def shortage(node_class: NodeClass, memory: MemoryEstimate, layout: Layout) -> tuple[float, str]:
    """Return the missing device or host bytes and the number that kills it; (0, "") when it fits or nobody knows.

    Fit means that the high end of the predicted peak stays within what is free now.
    """
    available = node_class.device.usable_memory_bytes
    needed = memory.peak_bytes.high
    missing = 0.0
    reasons: list[str] = []
    if available is not None and needed > available:
        what = "free" if node_class.device.memory_free_bytes is not None else "total"
        missing += needed - available
        reasons.append(
            f"needs {format_bytes(needed)} of the {format_bytes(available)} {what} on {node_class.device.name}"
        )
    offloads = layout.optimizer_offload != "none" or layout.parameter_offload != "none"
    host, host_needed = node_class.host_memory_bytes, memory.host_bytes_per_rank * node_class.devices_per_node
    if offloads and node_class.device.kind != "cpu" and host is not None and host_needed > host:
        missing += host_needed - host
        reasons.append(
            f"needs {format_bytes(host_needed)} of the {format_bytes(host)} host memory of a node of {node_class.name}"
        )
    return missing, " and ".join(reasons)


def fits(at: Site, layout: Layout, node_class: NodeClass, share: Share) -> bool:
    """Whether one class fits, or nothing says that it does not."""
    return not shortage(node_class, memory_of(at, layout, node_class, share), layout)[1]
