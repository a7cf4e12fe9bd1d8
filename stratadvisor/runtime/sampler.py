"""Which samples a rank takes in each step: unequal shares, every sample once per epoch, resumable anywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

_ROUNDS = 4


class Permutation:
    """A pseudo-random order of 0 .. size-1 in constant memory: a Feistel network, walked until it falls inside.

    ``torch.randperm`` of the samples of a large corpus would cost gigabytes in every process.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, not {size}")
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        digest = hashlib.sha256(f"{seed}/{size}".encode()).digest()
        self._keys = [int.from_bytes(digest[8 * i : 8 * i + 8], "big") for i in range(_ROUNDS)]

    def _mix(self, value: int, key: int) -> int:
        """Return a well-spread function of one half (multiply, shift, as in SplitMix64)."""
        value = (value + key) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ (value >> 29)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        return (value ^ (value >> 32)) & self._mask

    def __getitem__(self, index: int) -> int:
        """Return the element at a place."""
        while True:
            left, right = index >> self._half_bits, index & self._mask
            for key in self._keys:
                left, right = right, left ^ self._mix(right, key)
            index = left << self._half_bits | right
            if index < self.size:
                return index


def split_evenly(total: int, parts: int) -> list[int]:
    """Return ``parts`` sizes that add up to ``total`` and differ by at most one, larger first."""
    quotient, rest = divmod(total, parts)
    return [quotient + (i < rest) for i in range(parts)]


class ShareSampler:
    """Yields the sample indices of one micro-batch after the other, without end.

    The stream of samples is one shuffled epoch after the other; each step takes the next ``sum(shares)`` of it and rank
    r the part of ``shares[r]`` in it, so that all ranks together see every sample exactly once per epoch. The position
    is one number, the samples taken before.
    """

    def __init__(
        self,
        num_samples: int,
        shares: Sequence[int],
        rank: int,
        *,
        num_micro_batches: int = 1,
        seed: int = 0,
        start_sample: int = 0,
    ) -> None:
        self.num_samples = num_samples
        self.global_batch_size = sum(shares)
        self._offset = sum(shares[:rank])
        self._micro_batches = split_evenly(shares[rank], num_micro_batches)
        self._seed = seed
        self.start_sample = start_sample
        """Samples that all ranks together have taken before."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield lists of sample indices, ``num_micro_batches`` of them per step."""
        epoch, order = -1, Permutation(self.num_samples, self._seed)
        position = self.start_sample + self._offset
        while True:
            place = position
            for size in self._micro_batches:
                chosen = []
                for stream_index in range(place, place + size):
                    if stream_index // self.num_samples != epoch:
                        epoch = stream_index // self.num_samples
                        order = Permutation(self.num_samples, self._seed + epoch)
                    chosen.append(order[stream_index % self.num_samples])
                yield chosen
                place += size
            position += self.global_batch_size
