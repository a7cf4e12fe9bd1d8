"""Decisions of adaptive control, from figures alone: what is steady changes something once, noise changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from stratadvisor.runtime.adaptive import (
    PATIENCE,
    SETTLING,
    URGENT_PATIENCE,
    Change,
    Controller,
    Limits,
    NoiseScale,
    Regime,
    Window,
    balanced_shares,
    divided,
    meet,
)
from stratadvisor.runtime.adaptive_engine import window
from stratadvisor.runtime.telemetry import FIELDS

SOME = Limits(max_loader_workers=4)
EVEN = Regime(shares=(8, 8))
ROOM = 10 * (PATIENCE + SETTLING)


def seen(own: Sequence[float], exchange: float = 0.0, **more: float) -> Window:
    return Window(own_seconds=tuple(own), communication_seconds=exchange, **more)


def play(controller: Controller, measure: Callable[[Regime], Window], windows: int = ROOM) -> list[Change]:
    found = [controller.observe(measure(controller.regime)) for _ in range(windows)]
    return [change for change in found if change is not None]


def cluster(
    speeds: Sequence[float], *, overhead: float = 0.0, exchange: float = 0.0, noise: float = 0.0, **more: float
) -> Callable[[Regime], Window]:
    """Measured as ranks of these speeds (sequences a second) would be, with noise of the given relative width."""
    draw = random.Random(3)

    def measure(regime: Regime) -> Window:
        own = [
            (overhead + share / speed) * (1 + draw.uniform(-noise, noise))
            for share, speed in zip(regime.shares, speeds, strict=True)
        ]
        return seen(own, exchange, **more)

    return measure


@pytest.mark.parametrize(("total", "weights"), [(16, (1, 1)), (7, (3, 1, 1)), (5, (100, 1, 1)), (33, (5, 3, 2, 1))])
def test_parts_add_up_and_are_within_one_of_their_proportion(total: int, weights: tuple[int, ...]) -> None:
    parts = divided(total, weights)
    assert sum(parts) == total
    free = total - len(weights)
    for part, weight in zip(parts, weights, strict=True):
        assert part >= 1
        assert abs(part - 1 - free * weight / sum(weights)) < 1


def test_shares_follow_speeds() -> None:
    # 8 sequences in 1 s and in 3 s: speeds 8 and 8/3, so three quarters of the 14 that are free go to the first
    assert balanced_shares((8, 8), (1.0, 3.0)) == (1 + 11, 1 + 3)


def test_a_rank_slowed_to_a_third_gets_less_and_gets_it_back() -> None:
    controller = Controller(EVEN, SOME)
    first = play(controller, cluster([8, 8 / 3]))
    assert [change.kind for change in first] == ["balance:1"]
    assert "rank 1 needs 3 s, the fastest 1 s: shares 8/8 -> 12/4" in first[0].reason
    play(controller, cluster([8, 8]))
    assert controller.regime.shares == EVEN.shares


def test_a_fixed_part_of_the_time_is_learnt_by_trying_again() -> None:
    measure = cluster([8, 8 / 3], overhead=0.5)
    controller = Controller(Regime(shares=(64, 64)), SOME)
    changes = play(controller, measure)
    assert 1 <= len(changes) <= 3
    own = measure(controller.regime).own_seconds
    assert max(own) < 1.15 * min(own)


@pytest.mark.parametrize(("slow", "patience"), [(1.6, PATIENCE), (4.0, URGENT_PATIENCE)])
def test_a_large_difference_is_believed_sooner(slow: float, patience: int) -> None:
    controller = Controller(EVEN, SOME)
    answers = [controller.observe(seen([1.0, slow])) for _ in range(SETTLING + patience)]
    assert [answer is not None for answer in answers] == [False] * (SETTLING + patience - 1) + [True]


@pytest.mark.parametrize("speeds", [[8.0, 8.0], [8.0, 7.5]])
def test_noise_moves_no_samples(speeds: list[float]) -> None:
    assert play(Controller(EVEN, SOME), cluster(speeds, noise=0.2), 2000) == []


def test_one_slow_window_is_not_enough() -> None:
    controller = Controller(EVEN, SOME)
    slow, usual = seen([1.0, 3.0]), seen([1.0, 1.0])
    for _ in range(20):
        for measured in (*[slow] * (URGENT_PATIENCE - 1), usual):
            assert controller.observe(measured) is None


def test_a_slow_link_makes_ranks_meet_rarely_and_a_fast_one_every_step_again() -> None:
    controller = Controller(EVEN, SOME)
    slow = play(controller, cluster([8, 8], exchange=4.0))
    # an exchange of 4 s beside steps of 1 s is a fifth of the time after 16 steps: 4 / (16 + 4)
    assert [change.kind for change in slow] == ["local"]
    assert controller.regime.interval_steps == 16
    assert "communication is 80% of a step" in slow[0].reason
    fast = play(controller, cluster([8, 8], exchange=0.05))
    assert [change.kind for change in fast] == ["synchronous"]
    assert controller.regime == EVEN


@pytest.mark.parametrize("share", [0.15, 0.2, 0.25])
@pytest.mark.parametrize("start", [0, 4])
def test_between_the_two_limits_nothing_switches(share: float, start: int) -> None:
    regime = replace(EVEN, interval_steps=start)
    controller = Controller(regime, SOME)
    changes = play(controller, cluster([8, 8], exchange=share / (1 - share), noise=0.05), 1000)
    assert not {"local", "synchronous"} & {change.kind for change in changes}
    assert len(changes) <= 1  # the interval of local steps is set once


def test_the_interval_follows_the_link_in_large_steps_only() -> None:
    controller = Controller(replace(EVEN, interval_steps=16), SOME)
    assert play(controller, cluster([8, 8], exchange=6.0)) == []  # 24 wanted: less than twice
    assert [c.kind for c in play(controller, cluster([8, 8], exchange=9.0))] == ["interval up"]
    assert controller.regime.interval_steps == 36
    assert [c.kind for c in play(controller, cluster([8, 8], exchange=1.0))] == ["interval down"]
    assert controller.regime.interval_steps == 4


def test_the_batch_grows_within_the_critical_batch_and_shrinks_again() -> None:
    controller = Controller(EVEN, SOME)
    # to a fifth from a half takes four times the computing; 4 x 16 sequences are allowed
    up = play(controller, cluster([8, 8], exchange=1.0, critical_samples=64.0))
    assert [change.kind for change in up] == ["batch up"]
    assert controller.regime == Regime(shares=(32, 32), accumulation=4)
    down = play(controller, cluster([8, 8], exchange=0.01, critical_samples=64.0))
    assert {change.kind for change in down} == {"batch down"}
    assert controller.regime == EVEN


def test_a_batch_beyond_the_critical_one_shrinks() -> None:
    controller = Controller(Regime(shares=(32, 32), accumulation=4), SOME)
    changes = play(controller, cluster([8, 8], exchange=1.0, critical_samples=20.0))
    assert changes[0].kind == "batch down"
    assert "the critical batch is 20: batch 64 -> 32" in changes[0].reason


@pytest.mark.parametrize("critical", [None, 63.0])
def test_a_batch_that_teaches_no_more_is_not_raised(critical: float | None) -> None:
    change = meet(EVEN, Window(own_seconds=(1, 1), communication_seconds=1, critical_samples=critical), SOME)
    assert change is not None
    assert change.kind == "local"


def test_more_loader_workers_are_tried_and_taken_back_where_they_do_not_help() -> None:
    def bound_by_processor(regime: Regime) -> Window:
        return seen([1.0, 1.0], data_wait_seconds=1.0 / (1 + 2 * regime.loader_workers))

    def slow_disk(_: Regime) -> Window:
        return seen([1.0, 1.0], data_wait_seconds=0.5)

    controller = Controller(EVEN, SOME)
    assert {change.kind for change in play(controller, bound_by_processor)} == {"workers"}
    assert controller.regime.loader_workers == 4
    controller = Controller(EVEN, SOME)
    assert [change.kind for change in play(controller, slow_disk)] == ["workers", "workers back"]
    assert controller.regime == EVEN


def test_the_noise_scale_of_known_gradients_is_found() -> None:
    # g_r = G + noise / sqrt(b_r): |G|^2 = 4, tr(S) = size * 9, so the noise scale is size * 9 / 4
    size, shares, draw = 500, (4, 12), torch.Generator().manual_seed(1)
    signal = torch.zeros(size, dtype=torch.float64)
    signal[0] = 2.0
    scale = NoiseScale(decay=0.999)
    for _ in range(3000):
        own = [signal + 3 * torch.randn(size, dtype=torch.float64, generator=draw) / b**0.5 for b in shares]
        mean = sum(b * g for b, g in zip(shares, own, strict=True)) / sum(shares)
        scale.add([float(g.square().sum()) for g in own], shares, float(mean.square().sum()))
    assert scale.samples == pytest.approx(size * 9 / 4, rel=0.1)


def test_a_window_of_steps_separates_own_time_from_waiting() -> None:
    rows = torch.zeros(2, 3, len(FIELDS), dtype=torch.float64)

    def put(name: str, rank: int, values: list[float]) -> None:
        rows[rank, :, FIELDS.index(name)] = torch.tensor(values, dtype=torch.float64)

    put("step_seconds", 0, [4.0, 4.0, 9.0])  # the fast rank waits for the slow one, then once for the disk
    put("communication_seconds", 0, [3.0, 3.0, 3.0])
    put("data_wait_seconds", 0, [0.0, 0.0, 5.0])
    put("step_seconds", 1, [4.0, 4.0, 4.0])
    put("communication_seconds", 1, [0.5, 0.5, 0.5])
    found = window(rows, local=False, critical=None)
    assert found.own_seconds == (1.0, 3.5)
    assert found.communication_seconds == 0.5
    local = window(rows, local=True, critical=7.0)
    assert local.communication_seconds == 3 * 0.5  # of the exchange, not of a step
    assert local.critical_samples == 7.0
