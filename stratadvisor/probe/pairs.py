"""Copies from one accelerator to another, pair by pair, and whether the data arrives unharmed.

Some consumer boards report peer access and then deliver garbage (seen with the RTX 4090 and driver 525), so a
pattern is compared after the copy. Has not been run on GPUs; with one device or a CPU it does not apply.
"""

from __future__ import annotations

from itertools import combinations

import torch

from stratadvisor.probe.found import PairRate
from stratadvisor.probe.outcome import UnsupportedHereError
from stratadvisor.probe.torch_clock import open_device, seconds_of, wait

BUFFER_BYTES = 256 * 1024**2
QUICK_BUFFER_BYTES = 16 * 1024**2
MAX_DEVICES = 16


def measure(devices: tuple[int, ...], threads: int, budget_seconds: float = 3.0, quick: bool = False) -> list[PairRate]:
    """Measure every pair of the given torch device indexes."""
    if len(devices) < 2:
        raise UnsupportedHereError("fewer than two accelerators: there is no pair")
    if len(devices) > MAX_DEVICES:
        raise UnsupportedHereError(f"more than {MAX_DEVICES} accelerators: pairs are left out")
    open_device(f"cuda:{devices[0]}", threads)
    size = QUICK_BUFFER_BYTES if quick else BUFFER_BYTES
    pattern = (torch.arange(size // 4, dtype=torch.int32) * 2654435761).to(torch.int32)
    rates: list[PairRate] = []
    for a, b in combinations(devices, 2):
        source, target = torch.device(f"cuda:{a}"), torch.device(f"cuda:{b}")
        sent, received = pattern.to(source), torch.zeros_like(pattern, device=target)

        def copy(sent: torch.Tensor = sent, received: torch.Tensor = received) -> None:
            received.copy_(sent, non_blocking=True)

        copy()
        wait(source)
        wait(target)
        intact = bool(torch.equal(received.cpu(), pattern))
        best = min(seconds_of(target, copy) for _ in range(3))
        rates.append(
            PairRate(
                device_a=a,
                device_b=b,
                peer_access=bool(torch.cuda.can_device_access_peer(source, target)),
                bytes_per_second=size / best,
                intact=intact,
            )
        )
    return rates
