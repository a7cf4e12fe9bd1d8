"""Host memory and NVMe of one rank: the process itself and what is offloaded to it."""

from __future__ import annotations

from stratadvisor.schema.layout import Layout
from stratadvisor.units import GIB

PROCESS_BYTES = 2.0 * GIB
"""Resident size of a training process with CUDA libraries loaded (estimated; 1.5 to 3 GiB are usual)."""
PINNED_FACTOR = 1.25
"""Pinned buffers are rounded up to powers of two by torch and held twice at times; DeepSpeed's own estimator uses 1.5
and counts less."""
NVME_BUFFER_ELEMENTS = 1e9
"""DeepSpeed's sub_group_size: what is in host memory at a time while states live on NVMe."""


def offloaded(
    layout: Layout, weights: float, gradients_fp32: float, states: float, trained: float
) -> tuple[float, float]:
    """Return (host bytes, NVMe bytes) of one rank.

    Args:
        layout: decides what is offloaded, and to where.
        weights: bytes of this rank's part of the weights.
        gradients_fp32: bytes of its part of the gradients in fp32, which the CPU's optimizer needs.
        states: bytes of its part of the optimizer states and master weights.
        trained: elements of that part.

    """
    host = nvme = 0.0
    if layout.optimizer_offload == "cpu":
        host += PINNED_FACTOR * (gradients_fp32 + states)
    elif layout.optimizer_offload == "nvme":
        nvme += states
        host += PINNED_FACTOR * (states + gradients_fp32) * min(1.0, NVME_BUFFER_ELEMENTS / max(trained, 1.0))
    if layout.parameter_offload == "cpu":
        host += PINNED_FACTOR * weights
    elif layout.parameter_offload == "nvme":
        nvme += weights
        host += PINNED_FACTOR * min(weights, 2 * NVME_BUFFER_ELEMENTS)
    return host, nvme


def server_bytes(num_workers: int, states_each: float, trained: float) -> float:
    """Return the host memory of the parameter server of asynchronous training.

    Weights, optimizer states, their sum and its compensation (fp32), and per worker the weights it read (delay
    compensation needs them, arXiv:1609.08326) and, for half of them at a time, a gradient that waits.
    """
    return trained * (4.0 + states_each + 12.0 + 6.0 * num_workers)
