from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.runtime.sampler import Permutation, ShareSampler, split_evenly


@given(st.integers(1, 300), st.integers(0, 10**9))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_permutation_has_every_element_once(size: int, seed: int) -> None:
    order = Permutation(size, seed)
    assert sorted(order[i] for i in range(size)) == list(range(size))


def test_a_permutation_differs_between_seeds_and_repeats_with_the_same() -> None:
    first, again, other = (Permutation(100, seed) for seed in (1, 1, 2))
    assert [first[i] for i in range(100)] == [again[i] for i in range(100)]
    assert [first[i] for i in range(100)] != [other[i] for i in range(100)]
    assert [first[i] for i in range(100)] != list(range(100))


def test_a_permutation_of_a_huge_corpus_needs_no_memory() -> None:
    order = Permutation(10**12, 0)
    chosen = [order[i] for i in range(1000)]
    assert len(set(chosen)) == 1000
    assert all(0 <= c < 10**12 for c in chosen)


def test_an_empty_permutation_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Permutation(0, 0)


@given(st.integers(0, 1000), st.integers(1, 40))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_even_parts_add_up_and_differ_by_at_most_one(total: int, parts: int) -> None:
    sizes = split_evenly(total, parts)
    assert sum(sizes) == total
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) <= 1


def take(sampler: ShareSampler, micro_batches: int) -> list[list[int]]:
    return list(islice(iter(sampler), micro_batches))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 100))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_ranks_together_see_every_sample_once_per_epoch(shares: list[int], epochs: int, seed: int) -> None:
    steps = 7
    num_samples = sum(shares) * steps  # an epoch of exactly seven steps
    for epoch in range(epochs):
        seen: list[int] = []
        for rank, share in enumerate(shares):
            sampler = ShareSampler(
                num_samples, shares, rank, num_micro_batches=1, seed=seed, start_sample=epoch * num_samples
            )
            batches = take(sampler, steps)
            assert [len(b) for b in batches] == [share] * steps
            seen += [index for batch in batches for index in batch]
        assert sorted(seen) == list(range(num_samples))


def test_an_epoch_that_ends_inside_a_step_goes_on_with_the_next() -> None:
    num_samples, shares, steps = 10, [1, 2], 10  # 30 samples: three epochs, two borders inside steps
    per_rank = [take(ShareSampler(num_samples, shares, rank, seed=5), steps) for rank in range(2)]
    flat = [index for step in range(steps) for index in per_rank[0][step] + per_rank[1][step]]
    for epoch in range(3):
        assert sorted(flat[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_micro_batches_split_a_share_as_evenly_as_possible() -> None:
    sampler = ShareSampler(100, [7, 3], 0, num_micro_batches=3, seed=0)
    assert [len(b) for b in take(sampler, 6)] == [3, 2, 2, 3, 2, 2]


def test_resuming_gives_the_rest_of_the_same_stream() -> None:
    whole = take(ShareSampler(50, [2, 3], 1, num_micro_batches=2, seed=9), 20)
    rest = take(ShareSampler(50, [2, 3], 1, num_micro_batches=2, seed=9, start_sample=4 * 5), 12)
    assert rest == whole[8:]
