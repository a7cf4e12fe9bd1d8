"""Speeds that change in phases: the time of a step that waits for the slowest, by counting the states."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs.changing import Waiting, averaged, expected_maximum, lockstep_seconds, spread, within
from stratadvisor.costs.step import CONSTANT_TERMS, TERMS, estimate_step
from stratadvisor.schema.layout import Layout

HALF = ((0.5, 0.3 / 0.65), (0.5, 1 / 0.65))
"""Full speed every other second and 0.3 of it between: mean 0.65."""


def ranks(seconds: float, levels: tuple[tuple[float, float], ...] = (), count: int = 1, rest: float = 0.0) -> Waiting:
    return Waiting(num_nodes=count, changing_seconds=seconds, constant_seconds=rest, levels=levels)


def test_a_steady_and_a_changing_node_with_equal_shares() -> None:
    # a whole batch takes 1 s at full speed; each does half of it: 0.5 s in one state, 0.5 / 0.3 s in the other
    alone = 1.0
    both = lockstep_seconds([ranks(0.5), ranks(0.5 / 0.65, HALF)])
    assert both == pytest.approx(1 / (0.5 / 0.5 + 0.5 / (0.5 / 0.3)))
    assert both < alone
    # the harmonic mean of 2 and 0.6 steps a second, not the mean of 0.5 and 1.67 s
    assert both == pytest.approx(1 / 1.3)


def test_what_does_not_change_dilutes_it() -> None:
    found = lockstep_seconds([ranks(0.5, rest=0.1), ranks(0.5 / 0.65, HALF, rest=0.1)])
    assert found == pytest.approx(1 / (0.5 / 0.6 + 0.5 / (0.5 / 0.3 + 0.1)))


def test_two_changing_nodes_are_both_fast_in_a_quarter_of_the_time() -> None:
    found = lockstep_seconds([ranks(1.0, HALF, count=2)])
    assert found == pytest.approx(1 / (0.25 / 0.65 + 0.75 / (0.65 / 0.3)))
    assert lockstep_seconds([ranks(1.0, HALF), ranks(1.0, HALF)]) == pytest.approx(found)
    # with many there is always a slow one
    assert lockstep_seconds([ranks(1.0, HALF, count=1000)]) == pytest.approx(0.65 / 0.3)


def test_a_simulation_of_lockstep_agrees() -> None:
    """Three nodes that change at random times of their own, work done in small pieces of time."""
    chance, slice_seconds, phase = random.Random(3), 0.01, 1.0
    work_of = (0.05, 0.04, 0.03)
    low = (0.3, 0.5, 1.0)
    slow = [False, False, False]
    left, steps, slices = list(work_of), 0, 400_000
    for _ in range(slices):
        slow = [not s if chance.random() < slice_seconds / phase else s for s in slow]
        left = [rest - slice_seconds * (low[i] if slow[i] else 1.0) for i, rest in enumerate(left)]
        if max(left) <= 0:
            steps += 1
            left = list(work_of)
    simulated = slices * slice_seconds / steps
    classes = [
        ranks(w / ((1 + f) / 2), ((0.5, 2 * f / (1 + f)), (0.5, 2 / (1 + f)))) if f < 1 else ranks(w)
        for w, f in zip(work_of, low, strict=True)
    ]
    predicted = lockstep_seconds(classes)
    assert predicted == pytest.approx(simulated, rel=0.15)  # steps end with a slice, a tenth to a fifth of one


def test_phases_shorter_than_the_time_between_meetings_average_out() -> None:
    one = Waiting(num_nodes=1, changing_seconds=0.5, constant_seconds=0.0, levels=HALF, phase_seconds=1.0)
    every_step = lockstep_seconds([one])
    assert every_step == pytest.approx(0.5)  # alone it waits for nobody: the mean rate is the mean rate
    pair = [one, replace(one, levels=())]
    seldom = [lockstep_seconds(pair, steps) for steps in (1, 8, 64, 10**6)]
    assert seldom == sorted(seldom, reverse=True)
    assert seldom[-1] == pytest.approx(0.5, rel=0.01)
    # 4 s hold four phases: half of the spread is left
    assert averaged(HALF, 1.0, 4.0) == tuple((p, pytest.approx(1 + (s - 1) / 2)) for p, s in HALF)
    assert averaged(HALF, 1.0, 0.5) == HALF


@pytest.mark.parametrize(("count", "tabulated"), [(1, 0.0), (2, math.pi**-0.5), (3, 1.5 * math.pi**-0.5), (16, 1.766)])
def test_the_expected_largest_of_normal_numbers(count: int, tabulated: float) -> None:
    assert expected_maximum(count) == pytest.approx(tabulated, rel=0.05)


def test_the_noise_beside_the_levels_is_what_they_do_not_explain() -> None:
    apart = spread(HALF)
    assert apart == pytest.approx(0.35 / 0.65)
    assert within(math.hypot(apart, 0.05), HALF) == pytest.approx(0.05)
    assert within(apart / 2, HALF) == 0.0
    assert within(0.1, ()) == 0.1


def step(at, layout: Layout) -> dict[str, float]:
    shares = tuple(w for c in at.classes for w in work(c))
    return estimate_step(LLAMA_7B, layout, at, shares, strategy="ddp").terms_seconds


def test_only_what_trains_in_step_waits() -> None:
    steady = nodes(gpu("A100-80GB"), 1, 8)
    changing = replace(steady, name="other", speed_levels=HALF, speed_phase_seconds=1e6)
    layout = Layout(engine="ddp", data_parallel_replicate_degree=16)
    before, after = (step(cluster(steady, c), layout) for c in (replace(steady, name="other"), changing))
    constant = sum(before[name] for name in CONSTANT_TERMS)
    rest = sum(before[name] for name in TERMS) - constant
    fast, slow = max(rest, rest * 0.65) + constant, rest * 0.65 / 0.3 + constant
    assert sum(after.values()) == pytest.approx(1 / (0.5 / fast + 0.5 / slow))
    assert after["straggler"] > before["straggler"]
    assert {k: v for k, v in after.items() if k != "straggler"} == {k: v for k, v in before.items() if k != "straggler"}
    free = replace(layout, engine="async")
    assert sum(step(cluster(steady, changing), free).values()) == pytest.approx(
        sum(step(cluster(steady, replace(steady, name="other")), free).values())
    )
    # local steps average over what lies between two meetings
    local = replace(layout, engine="local", sync_interval_steps=10**14)
    assert step(cluster(steady, changing), local)["straggler"] == pytest.approx(0.0, abs=1e-3 * rest)
    alone = Layout(engine="torch")
    assert step(cluster(changing), alone)["straggler"] == 0.0
