from __future__ import annotations

import math

import pytest

from stratadvisor.costs.convergence import extra_steps_fraction


def test_exact_methods_and_single_workers_need_no_more_steps() -> None:
    assert extra_steps_fraction("synchronous", num_workers=64) == (0.0, "")
    assert extra_steps_fraction("local_sgd", sync_interval_steps=100, num_workers=1) == (0.0, "")
    assert extra_steps_fraction("local_sgd", sync_interval_steps=1, num_workers=8) == (0.0, "")


def test_longer_intervals_cost_more_and_eight_and_five_hundred_are_the_fixed_points() -> None:
    found = [extra_steps_fraction("local_sgd", sync_interval_steps=n, num_workers=2)[0] for n in (2, 8, 50, 500)]
    assert found == sorted(found)
    assert found[1] == pytest.approx(0.05)
    assert found[3] == pytest.approx(0.10)


def test_staler_gradients_and_more_replicas_cost_more() -> None:
    stale = [extra_steps_fraction("asynchronous", staleness=s, num_workers=8)[0] for s in (0, 1, 7, 63, 1e6)]
    assert stale == sorted(stale)
    assert stale[-1] <= 2.0
    few, many = (extra_steps_fraction("local_sgd", sync_interval_steps=50, num_workers=n)[0] for n in (8, 64))
    # 411 / D**0.28 nats of arXiv:2203.15556 at D = 48e9 tokens: what 1.2 % of 2.33 nats cost, in tokens
    per_e_fold = 0.28 * 411 / 48e9**0.28
    two, eight = (extra_steps_fraction("local_sgd", sync_interval_steps=50, num_workers=n)[0] for n in (2, 8))
    assert eight - two == pytest.approx(math.exp(0.012 * 2.33 / per_e_fold) - 1, abs=0.03)
    assert many - few == pytest.approx(1.5 * (eight - two))  # three more doublings, after two


def test_every_penalty_names_its_source() -> None:
    for kind in ("local_sgd", "hierarchical", "asynchronous"):
        extra, note = extra_steps_fraction(kind, sync_interval_steps=8, staleness=3, num_workers=4)
        assert extra > 0
        assert "arXiv" in note


def test_an_unknown_kind_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="gossip"):
        extra_steps_fraction("gossip", num_workers=2)


def test_a_late_exchange_counts_as_a_longer_interval() -> None:
    late, note = extra_steps_fraction("hierarchical", sync_interval_steps=4, delay_steps=2, num_workers=4)
    assert late == extra_steps_fraction("hierarchical", sync_interval_steps=6, num_workers=4)[0]
    assert "every 4 steps, 2 steps late," in note
