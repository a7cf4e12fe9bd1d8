"""Communication hooks of DDP that send fewer bytes and work on gloo as well as NCCL.

torch's own bf16 hook refuses gloo, and its quantization hooks fail on it; these do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]
CAST_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
SIGN_BLOCK = 1024
"""Elements that share one scale."""
SIGN_WARMUP_STEPS = 50
"""Steps with dense gradients first: without them sign compression diverges at usable learning rates."""


def sum_reduce(buffer: torch.Tensor, group: Any, dtype: torch.dtype | None) -> torch.futures.Future[torch.Tensor]:
    """Add up a bucket over ``group``, sent as ``dtype``; each rank's part is of a mean already, so sums stay small."""
    if dtype is None:
        work = dist.all_reduce(buffer, group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]
    small = buffer.to(dtype)
    work = dist.all_reduce(small, group=group, async_op=True)

    def back(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return buffer.copy_(future.value()[0])

    return work.get_future().then(back)  # type: ignore[no-any-return]


class SignCompressor:
    """One bit per element, a scale per block, the error fed back into the next step, after a dense warm-up.

    Seide 2014 and EF-SignSGD (arXiv:1901.09847). Signs are gathered from all ranks, so the traffic grows with the
    number of ranks: worthwhile below about 64 of them.
    """

    def __init__(self, group: Any, warmup_steps: int = SIGN_WARMUP_STEPS) -> None:
        self.group, self.warmup_steps = group, warmup_steps
        self._errors: dict[int, torch.Tensor] = {}
        self._calls: dict[int, int] = {}

    def reduce(self, index: int, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Add up the bucket ``index`` in place, approximately."""
        self._calls[index] = self._calls.get(index, 0) + 1
        if self._calls[index] <= self.warmup_steps:
            return sum_reduce(buffer, self.group, None)
        error = self._errors.get(index)
        if error is None or error.shape != buffer.shape:  # DDP rebuilds its buckets after the first step
            error = torch.zeros_like(buffer)
        wanted = buffer + error
        scales, packed = pack_signs(wanted)
        self._errors[index] = wanted - unpack_signs(scales, packed, wanted)
        ranks = dist.get_world_size(self.group)
        all_scales = [torch.empty_like(scales) for _ in range(ranks)]
        all_packed = [torch.empty_like(packed) for _ in range(ranks)]
        dist.all_gather(all_scales, scales, group=self.group)
        dist.all_gather(all_packed, packed, group=self.group)
        buffer.zero_()
        for part_scales, part_packed in zip(all_scales, all_packed, strict=True):
            buffer.add_(unpack_signs(part_scales, part_packed, buffer))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(buffer)
        return done


def pack_signs(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (mean magnitude of each block, signs as bits in bytes)."""
    padded = torch.nn.functional.pad(values, (0, -len(values) % SIGN_BLOCK)).view(-1, SIGN_BLOCK)
    sizes = torch.full((len(padded),), float(SIGN_BLOCK), device=values.device)
    sizes[-1] = len(values) - SIGN_BLOCK * (len(padded) - 1)
    scales = padded.abs().sum(1) / sizes
    bits = (padded >= 0).view(-1, 8).to(torch.uint8)
    weights = 2 ** torch.arange(8, device=values.device, dtype=torch.uint8)
    return scales, (bits * weights).sum(1, dtype=torch.uint8)


def unpack_signs(scales: torch.Tensor, packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the values that ``pack_signs`` stands for, in the shape of ``like``."""
    shifts = torch.arange(8, device=packed.device, dtype=torch.uint8)
    bits = (packed[:, None] >> shifts) & 1
    signs = bits.view(-1, SIGN_BLOCK).to(scales.dtype) * 2 - 1
    return (signs * scales[:, None]).view(-1)[: like.numel()].view_as(like)
