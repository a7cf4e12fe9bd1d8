from __future__ import annotations

import torch

from stratadvisor.runtime.int8 import BLOCK, LARGEST, dequantize, quantize


def test_rounding_takes_at_most_half_a_step_of_each_block() -> None:
    values = torch.randn(3 * BLOCK, generator=torch.Generator().manual_seed(0)) * torch.logspace(
        -3, 3, 3
    ).repeat_interleave(BLOCK)
    codes, scales = quantize(values)
    assert codes.dtype == torch.int8
    assert len(scales) == 3
    for block in range(3):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        assert torch.allclose(scales[block], values[part].abs().max() / LARGEST)
        assert (dequantize(codes, scales)[part] - values[part]).abs().max() <= scales[block] / 2 * 1.001


def test_a_block_of_zeros_stays_zero() -> None:
    codes, scales = quantize(torch.zeros(BLOCK))
    assert torch.equal(dequantize(codes, scales), torch.zeros(BLOCK))
