"""Time of the optimizer: states swept through device memory, or through host memory when offloaded."""

from __future__ import annotations

from dataclasses import dataclass

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.rates import device_rates
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerTime:
    """Seconds per optimizer step, and of offload per step and per micro-batch."""

    update_seconds: float
    offload_seconds: float
    """Host update, and moving gradients and weights, once per step."""
    offload_micro_batch_seconds: float
    """Weights brought in for one micro-batch (parameter offload)."""
    assumptions: tuple[str, ...] = ()


def optimizer_seconds(
    shape: ModelShape, layout: Layout, node_class: NodeClass, held: float, ranks_per_node: int
) -> OptimizerTime:
    """Return the optimizer's time.

    Args:
        shape: the model.
        layout: its layout.
        node_class: where the rank runs.
        held: parameters whose optimizer state this rank keeps (after every division).
        ranks_per_node: ranks that share the host.

    """
    if layout.optimizer_offload == "none" and layout.parameter_offload == "none":
        return OptimizerTime(
            update_seconds=_device_update(shape, layout, node_class, held),
            offload_seconds=0.0,
            offload_micro_batch_seconds=0.0,
        )
    assumptions: list[str] = []
    link = node_class.device.host_link_bytes_per_second
    if link is None:
        link = fitted.ASSUMED_HOST_LINK
        assumptions.append(f"the link between host and {node_class.device.name} is assumed to move 12 GB/s")
    host = _host_bandwidth(node_class, assumptions)
    share = min(link, host / (2 * ranks_per_node))  # every copy passes through host memory as well
    weight = 4 if layout.precision == "fp32" else 2
    update = 0.0
    offload = 0.0
    if layout.optimizer_offload == "none":
        update = _device_update(shape, layout, node_class, held)
    else:
        offload += 2 * weight * held / share  # gradients down, weights up
        offload += held * ranks_per_node * fitted.CPU_ADAM_BYTES / host
        if layout.optimizer_offload == "nvme":
            storage = node_class.storage_read_bytes_per_second
            if storage is None:
                storage = fitted.ASSUMED_STORAGE
                assumptions.append("local storage is assumed to move 2 GB/s")
            offload += held * ranks_per_node * 24.0 / storage  # 12 bytes of states read and written
    per_micro_batch = 0.0
    if layout.parameter_offload != "none":
        own_part = _resident(shape, layout) / max(1, layout.data_parallel_shard_degree)
        per_micro_batch = 2 * weight * own_part / share  # once forward, once backward
    return OptimizerTime(
        update_seconds=update,
        offload_seconds=offload,
        offload_micro_batch_seconds=per_micro_batch,
        assumptions=tuple(assumptions),
    )


def _resident(shape: ModelShape, layout: Layout) -> float:
    return shape.num_parameters / (layout.tensor_parallel_degree * layout.pipeline_parallel_degree)


def _host_bandwidth(node_class: NodeClass, assumptions: list[str]) -> float:
    host = node_class.host_memory_bandwidth_bytes_per_second
    if host is None:
        host = fitted.ASSUMED_HOST_BANDWIDTH
        assumptions.append(f"host memory is assumed to move {host / 1e9:.0f} GB/s")
    if node_class.cpu_cores is not None:
        host = min(host, node_class.cpu_cores * fitted.CPU_ADAM_BYTES_PER_CORE_PER_SECOND)
    return host


def _cpu_factor(layout: Layout) -> float:
    if layout.engine == "deepspeed":
        return fitted.CPU_DEEPSPEED_OPTIMIZER_FACTOR
    return fitted.CPU_OPTIMIZER_FACTOR.get(layout.optimizer, fitted.CPU_LOOPED_OPTIMIZER_FACTOR)


def _device_update(shape: ModelShape, layout: Layout, node_class: NodeClass, held: float) -> float:
    rates = device_rates(node_class.device, layout.precision)
    seconds = held * fitted.OPTIMIZER_BYTES[layout.optimizer] / rates.memory_bytes_per_second
    if rates.cpu:
        seconds *= _cpu_factor(layout)
        if layout.engine == "deepspeed":
            whole = held * (layout.data_parallel_shard_degree if layout.sharding != "none" else 1)
            seconds += whole * fitted.CPU_DEEPSPEED_BYTES_PER_PARAMETER / rates.memory_bytes_per_second
    if layout.optimizer == "muon":
        width = max(1, shape.hidden_size)
        flops = held * fitted.MUON_FLOPS_PER_PARAMETER_PER_WIDTH * width
        seconds += flops / rates.sustained_flops_per_second
    return seconds
