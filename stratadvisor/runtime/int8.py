"""Sum of a vector over ranks in eight bits: a scale for each block, errors fed back, for exchanges of local methods.

Two phases, as a ring does: each rank adds up one part of all vectors, then hands its sum round. Traffic is
2 (n - 1)/n bytes an element, a quarter of fp32, for any number of ranks; gathering all vectors would grow with n.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

BLOCK = 1024
"""Elements that share one scale."""
LARGEST = 127


def quantize(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (int8, fp32 scale of each block) of a vector whose length is a multiple of ``BLOCK``."""
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1) / LARGEST
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    return (blocks / steps[:, None]).round().to(torch.int8).view(-1), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the values that ``quantize`` stands for."""
    return (codes.view(-1, BLOCK).to(torch.float32) * scales[:, None]).view(-1)


class Int8Sum:
    """Sums vectors over a group; what rounding took from a vector is added to the next one of the same key.

    Every rank gets the same bits.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.errors: dict[str, torch.Tensor] = {}

    def _rounded(self, key: str, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        error = self.errors.get(key)
        if error is not None and error.shape == values.shape:
            values = values + error.to(values.device)
        codes, scales = quantize(values)
        self.errors[key] = values - dequantize(codes, scales)
        return codes, scales

    def begin(self, key: str, vector: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start the first phase; return the function that waits for it and does the second one."""
        ranks = dist.get_world_size(self.group)
        padded = torch.nn.functional.pad(vector, (0, -len(vector) % (ranks * BLOCK)))
        codes, scales = self._rounded(f"{key}-own", padded)
        others_codes, others_scales = torch.empty_like(codes), torch.empty_like(scales)
        works = [
            dist.all_to_all_single(others_codes, codes, group=self.group, async_op=True),
            dist.all_to_all_single(others_scales, scales, group=self.group, async_op=True),
        ]

        def finish() -> torch.Tensor:
            for work in works:
                work.wait()
            part = dequantize(others_codes, others_scales).view(ranks, -1).sum(dim=0)
            part_codes, part_scales = self._rounded(f"{key}-sum", part)
            dist.all_gather_into_tensor(codes, part_codes, group=self.group)
            dist.all_gather_into_tensor(scales, part_scales, group=self.group)
            return dequantize(codes, scales)[: len(vector)]

        return finish
