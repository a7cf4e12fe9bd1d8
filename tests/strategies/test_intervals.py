from __future__ import annotations

import pytest
from planning_clusters import GIGABIT, cluster, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.intervals import EXCHANGE_SHARE, intervals, solved_interval
from stratadvisor.strategies.local import delays


@pytest.mark.parametrize(("exchange", "step"), [(3.64, 0.5), (60.0, 1.7), (1.0, 1.0)])
def test_the_solved_interval_is_the_shortest_that_keeps_exchanges_cheap(exchange: float, step: float) -> None:
    found = solved_interval(exchange, step, low=1, high=10**6)
    assert exchange / found <= EXCHANGE_SHARE * step * (1 + 1e-6)
    assert exchange / (found - 1) > EXCHANGE_SHARE * step


def test_it_stays_within_its_bounds() -> None:
    assert solved_interval(1e-6, 1.0, low=10, high=500) == 10
    assert solved_interval(1e6, 1.0, low=10, high=500) == 500


def test_no_interval_is_longer_than_the_run_allows() -> None:
    assert intervals(146, (30, 100), longest=1000) == [30, 100, 146]
    assert intervals(146, (30, 100), longest=50) == [30, 50]


@pytest.mark.parametrize(
    ("exchange", "interval", "longest", "expected"),
    [
        (0.001, 4, 2, [0]),  # a quarter per mille of the time: nothing to hide
        (0.5, 4, 2, [0, 1]),  # half a step hides behind one
        (9.0, 4, 2, [0, 2]),
        (9.0, 2, 2, [0, 1]),  # never as long as the interval
        (9.0, 4, 0, [0]),
    ],
)
def test_a_delay_is_tried_where_there_is_something_to_hide(
    exchange: float, interval: int, longest: int, expected: list[int]
) -> None:
    assert delays(exchange, 1.0, interval, longest) == expected


def test_steps_that_take_no_time_leave_the_shortest_interval() -> None:
    assert solved_interval(1.0, 0.0, low=10, high=500) == 10


@pytest.mark.parametrize(("steps", "longest"), [(299, None), (300, 10), (1500, 50)])
def test_a_run_too_short_for_thirty_outer_steps_of_ten_has_no_diloco(steps: int, longest: int | None) -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=2, per_node=2), between=GIGABIT)
    workload = Workload(
        model=shape_for_size(125e6), sequence_length=1024, global_batch_size=16, total_tokens=steps * 16 * 1024
    )
    found = [c.layout.sync_interval_steps for c in STRATEGIES["diloco"].candidates(where, workload)]
    # thirty exchanges at least
    assert max(found, default=None) == longest
