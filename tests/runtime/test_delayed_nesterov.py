from __future__ import annotations

import pytest
import torch

from stratadvisor.runtime.async_server import steps_by_speed
from stratadvisor.runtime.delayed_nesterov import DelayedNesterov
from stratadvisor.runtime.diloco import OuterNesterov


def drawn(count: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(0))


def test_with_one_worker_it_is_the_outer_step_of_diloco() -> None:
    weights, outer = torch.ones(8), OuterNesterov(torch.ones(8), 0.7, 0.9)
    delayed = DelayedNesterov(8, 0.7, 0.9, every=1)
    for change in drawn(6):
        delayed.step(weights, change, 1)
        assert torch.allclose(weights, outer.step(change), atol=1e-6)


def test_changes_that_come_together_are_one_step_of_diloco() -> None:
    weights, outer = torch.ones(8), OuterNesterov(torch.ones(8), 0.7, 0.9)
    delayed = DelayedNesterov(8, 0.7, 0.9, every=4)
    for mean in drawn(6):
        delayed.step(weights, mean, 4)
        assert torch.allclose(weights, outer.step(mean), atol=1e-6)


def test_momentum_waits_for_the_last_of_n_changes() -> None:
    delayed = DelayedNesterov(1, 0.5, 0.9, every=2)
    weights = torch.tensor([10.0])
    seen = []
    for change in (2.0, 6.0, 4.0, 4.0):
        delayed.step(weights, torch.tensor([change]), 1)
        seen.append(weights.item())
    # plain: half of each change. Momentum after two: m = (2 + 6) / 2 = 4; after four: 0.9 * 4 + 4 = 7.6
    first = 10 - 0.5 * 1
    second = first - 0.5 * (3 + 0.9 * 4)
    third = second - 0.5 * 2
    assert seen == pytest.approx([first, second, third, third - 0.5 * (2 + 0.9 * 7.6)])


def test_after_n_changes_it_is_where_diloco_would_be_whatever_their_order() -> None:
    changes = drawn(8)
    ends = []
    for order in (changes, changes.view(2, 4, 8).flip(1).reshape(8, 8)):
        weights, delayed = torch.zeros(8), DelayedNesterov(8, 0.7, 0.9, every=4)
        for change in order:
            delayed.step(weights, change, 1)
        ends.append(weights)
    outer = OuterNesterov(torch.zeros(8), 0.7, 0.9)
    for mean in changes.view(2, 4, 8).mean(dim=1):
        reference = outer.step(mean)
    for end in ends:
        assert torch.allclose(end, reference, atol=1e-5)


def test_more_than_n_changes_at_once_count_by_their_mean() -> None:
    delayed, weights = DelayedNesterov(1, 1.0, 0.5, every=2), torch.zeros(1)
    delayed.step(weights, torch.tensor([3.0]), 1)
    delayed.step(weights, torch.tensor([6.0]), 2)  # three came: 3, 6 and 6
    # plain: -3/2 - 6; momentum: their mean 5, half of it
    assert weights.item() == pytest.approx(-1.5 - 6 - 0.5 * 5)


def test_a_restored_one_goes_on_in_the_middle_of_n() -> None:
    changes = drawn(7)
    whole, weights = DelayedNesterov(8, 0.7, 0.9, every=3), torch.zeros(8)
    for change in changes[:4]:
        whole.step(weights, change, 1)
    resumed, again = DelayedNesterov(8, 0.7, 0.9, every=3), weights.clone()
    resumed.load_state_dict(
        {key: value.clone() if key != "count" else value for key, value in whole.state_dict().items()}
    )
    for change in changes[4:]:
        whole.step(weights, change, 1)
        resumed.step(again, change, 1)
    assert torch.equal(weights, again)


@pytest.mark.parametrize(
    ("own_seconds", "expected"),
    [(0.1, 50), (0.2, 25), (0.35, 14), (100.0, 1), (0.0, 50)],  # floor(50 * 0.1 / 0.35) = 14
)
def test_a_slow_worker_does_fewer_steps_before_it_pushes(own_seconds: float, expected: int) -> None:
    assert steps_by_speed(50, own_seconds, 0.1) == expected
