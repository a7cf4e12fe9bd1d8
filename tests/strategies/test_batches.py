from __future__ import annotations

import math
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.strategies.batches import (
    Worker,
    accumulation_steps,
    divisors,
    micro_batches,
    solve_shares,
)

workers = st.builds(
    Worker,
    count=st.integers(1, 12),
    sequences_per_second=st.floats(0.1, 10),
    overhead_seconds=st.sampled_from([0.0, 0.3]),
    cap=st.one_of(st.none(), st.integers(1, 30)),
)


@given(st.integers(1, 400), st.lists(workers, min_size=1, max_size=5))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_shares_sum_to_the_global_batch_and_stay_within_their_caps(batch: int, among: list[Worker]) -> None:
    shares = solve_shares(batch, among)
    if shares is None:
        return
    assert sum(w.count * b for w, b in zip(among, shares, strict=True)) == batch
    assert all(b >= 1 and (w.cap is None or b <= w.cap) for w, b in zip(among, shares, strict=True))


@given(st.integers(1, 60), st.lists(workers, min_size=2, max_size=2))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_two_classes_are_solved_as_well_as_by_trying_everything(batch: int, among: list[Worker]) -> None:
    limits = [w.cap or batch for w in among]
    possible = [
        max(w.seconds(b) for w, b in zip(among, shares, strict=True))
        for shares in product(*(range(1, limit + 1) for limit in limits))
        if sum(w.count * b for w, b in zip(among, shares, strict=True)) == batch
    ]
    shares = solve_shares(batch, among)
    assert (shares is None) == (not possible)
    if shares is not None:
        assert math.isclose(max(w.seconds(b) for w, b in zip(among, shares, strict=True)), min(possible))


def test_shares_follow_speed() -> None:
    # speeds 3:1 on equally many devices share 64 sequences of 2 + 2 devices as 24:8
    fast, slow = Worker(count=2, sequences_per_second=3.0), Worker(count=2, sequences_per_second=1.0)
    assert solve_shares(64, [fast, slow]) == (24, 8)


def test_fixed_overhead_counts_as_work_already_done() -> None:
    # 2 (T - 1) + 2 T = 38 gives T = 10: shares 18 and 20
    late = Worker(count=1, sequences_per_second=2.0, overhead_seconds=1.0)
    prompt = Worker(count=1, sequences_per_second=2.0)
    assert solve_shares(38, [late, prompt]) == (18, 20)


def test_a_capped_class_hands_its_rest_to_the_others() -> None:
    fast = Worker(count=1, sequences_per_second=9.0, cap=4)
    slow = Worker(count=1, sequences_per_second=1.0)
    assert solve_shares(10, [fast, slow]) == (4, 6)


def test_fewer_sequences_than_devices_cannot_be_shared() -> None:
    assert solve_shares(4, [Worker(count=8, sequences_per_second=1.0)]) is None


def test_a_batch_that_the_counts_cannot_form_is_refused() -> None:
    # 4 a + 8 b is a multiple of 4
    assert solve_shares(30, [Worker(count=c, sequences_per_second=1.0) for c in (4, 8)]) is None


@given(st.integers(1, 5000))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_micro_batches_divide_the_batch_and_begin_at_one(batch: int) -> None:
    sizes = micro_batches(batch)
    assert sizes[0] == 1
    assert sizes == sorted(set(sizes))
    assert all(batch % size == 0 for size in sizes)
    assert {size for size in divisors(batch) if size & (size - 1) == 0 and size <= 256} <= set(sizes)


@given(st.integers(1, 5000))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_divisors_are_all_of_them(number: int) -> None:
    assert divisors(number) == [d for d in range(1, number + 1) if number % d == 0]


def test_accumulation_ends_with_one_sequence_at_a_time() -> None:
    assert accumulation_steps(1) == [1]
    assert accumulation_steps(25) == [1, 2, 4, 8, 16, 25]
