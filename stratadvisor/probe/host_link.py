"""Copies between pinned host memory and an accelerator, each direction alone: the fastest of several.

Has not been run on a GPU; on a CPU it says that it does not apply.
"""

from __future__ import annotations

import torch

from stratadvisor.probe.found import LinkRates
from stratadvisor.probe.outcome import UnsupportedHereError
from stratadvisor.probe.torch_clock import open_device, samples

BUFFER_BYTES = 256 * 1024**2
QUICK_BUFFER_BYTES = 32 * 1024**2


def measure(device: str, threads: int, budget_seconds: float = 0.5, quick: bool = False) -> LinkRates:
    """Measure the link of one accelerator."""
    if device == "cpu":
        raise UnsupportedHereError("the device is the CPU itself: there is no link to cross")
    target = open_device(device, threads)
    size = QUICK_BUFFER_BYTES if quick else BUFFER_BYTES
    here = torch.ones(size, dtype=torch.uint8).pin_memory()
    there = torch.empty(size, dtype=torch.uint8, device=target)
    to_device = min(samples(target, lambda: there.copy_(here, non_blocking=True), budget_seconds / 2))
    to_host = min(samples(target, lambda: here.copy_(there, non_blocking=True), budget_seconds / 2))
    return LinkRates(host_to_device=size / to_device, device_to_host=size / to_host, buffer_bytes=size)
