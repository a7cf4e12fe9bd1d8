from __future__ import annotations

import torch

from stratadvisor.runtime.compression import SIGN_BLOCK, pack_signs, unpack_signs


def test_signs_and_mean_magnitudes_survive() -> None:
    values = torch.randn(SIGN_BLOCK * 2 + 100, generator=torch.Generator().manual_seed(0))
    scales, packed = pack_signs(values)
    assert packed.numel() * 8 == SIGN_BLOCK * 3  # one bit each, padded to whole blocks
    restored = unpack_signs(scales, packed, values)
    assert torch.equal(restored.sign(), values.sign())
    for block, piece in enumerate(values.split(SIGN_BLOCK)):
        assert torch.allclose(scales[block], piece.abs().mean())
        part = restored[block * SIGN_BLOCK : (block + 1) * SIGN_BLOCK]
        assert torch.allclose(part.abs(), scales[block].expand_as(part))


def test_a_block_of_zeros_stays_zero() -> None:
    values = torch.zeros(10)
    assert torch.equal(unpack_signs(*pack_signs(values), values), values)
