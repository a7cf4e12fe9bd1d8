"""What Python and dispatch take on a processor: from the time of one small operation, where the probe measured it.

A rank on half a processor needs twice as long for everything it does between products, and no comparison of nodes tells
that when all of them have half. A small operation timed there does.
"""

from __future__ import annotations

from stratadvisor.costs import constants as fitted
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Layout

USUAL_OPERATION_SECONDS = 9.2e-6
"""Of the machine that host times of engines were timed on, with a whole core."""
OPERATIONS_PER_KERNEL = 1.16
"""What the model counts as a kernel of a layer, forward or backward, against the measured operation (timed there: six
layers more take 5.2 ms more with 4 tokens, 30 kernels forward and 1.7 times as many backward each)."""
UPDATE_KERNELS_PER_LAYER = 20.0
"""AdamW's update, norm and scaling of the nine tensors of a layer, as kernels (timed with the same models)."""
LOOP_HOST_SECONDS_PER_STEP = 1.2e-3
"""The bundle's training loop: batch, learning rate, loss as a number, telemetry (timed against a bare loop)."""
OWN_LOOP = ("torch", "ddp", "fsdp2", "local", "async")
MIN_SHARE = 0.01
"""Of a processor; less is no quota that anybody sets."""


def launch_seconds(compute_seconds: float, engine_seconds: float, layout: Layout, node_class: NodeClass) -> float:
    """Return the host's time of a step, which on a CPU adds to the device's.

    Args:
        compute_seconds: of the launches of all micro-batches, as a core with nothing else to do takes.
        engine_seconds: of the engine's own Python, the same.
        layout: its engine has a loop of its own or the bundle's.
        node_class: where it runs.

    """
    operation = node_class.device.operation_seconds if node_class.device.kind == "cpu" else None
    if operation is None:
        return (compute_seconds + engine_seconds) * slowness(node_class)
    kernel = operation * OPERATIONS_PER_KERNEL
    loop = LOOP_HOST_SECONDS_PER_STEP if layout.engine in OWN_LOOP else 0.0
    return (
        compute_seconds * kernel / fitted.CPU_OPERATION_SECONDS
        + (engine_seconds + loop) * operation / USUAL_OPERATION_SECONDS
    )


def update_seconds(num_layers: float, layout: Layout, node_class: NodeClass) -> float:
    """Return what the update's operations take beside what they move; 0 where no operation was timed."""
    operation = node_class.device.operation_seconds if node_class.device.kind == "cpu" else None
    if operation is None or layout.engine not in OWN_LOOP:
        return 0.0
    return num_layers * UPDATE_KERNELS_PER_LAYER * operation * OPERATIONS_PER_KERNEL


def slowness(node_class: NodeClass) -> float:
    """Return how much longer Python takes where a process gets less than a whole processor (a quota)."""
    share = min(1.0, node_class.processor_share)
    if node_class.cpu_cores is not None:
        share = min(share, node_class.cpu_cores / node_class.devices_per_node)
    return 1 / max(MIN_SHARE, share)
