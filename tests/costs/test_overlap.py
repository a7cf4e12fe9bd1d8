"""Communication beside computation: a window hides only as much as it lasts, and a faster device is never slower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_clusters import GIGABIT, cluster, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.compute import ComputeTime
from stratadvisor.costs.data_parallel import Traffic, exposed_data_parallel_seconds
from stratadvisor.costs.overlap import exposed_side_by_side
from stratadvisor.costs.step import estimate_step
from stratadvisor.costs.work import ClassWork
from stratadvisor.schema.layout import Layout

SHAPE = shape_for_size(7e9)
HSDP = Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=16, data_parallel_replicate_degree=250)
WHERE = cluster(nodes(gpu("A100-80GB"), count=500), between=400 * GIGABIT)
seconds = st.floats(0.0, 10.0)


def compute(scale: float) -> ComputeTime:
    return ComputeTime(forward_seconds=scale, backward_seconds=2 * scale, recompute_seconds=0.0, terms_seconds={})


def step(moved: Traffic, scale: float, micro_batches: float) -> float:
    beside = compute(scale)
    shown = exposed_data_parallel_seconds(SHAPE, HSDP, WHERE, moved, beside, micro_batches)
    return micro_batches * beside.total_seconds + shown


@given(seconds, seconds, seconds, st.booleans(), st.floats(0.01, 5.0), st.floats(1.0, 4.0), st.integers(1, 4))
def test_a_faster_device_never_makes_a_step_longer_and_no_link_is_faster_than_itself(
    forward: float, backward: float, last: float, apart: bool, scale: float, faster: float, micro_batches: int
) -> None:
    moved = Traffic(forward=forward, backward=backward, last_backward=last, links_differ=apart)
    slow = step(moved, scale, micro_batches)
    assert step(moved, scale / faster, micro_batches) <= slow * (1 + 1e-12)
    gathers = micro_batches * (forward + backward)
    least = max(gathers, last) if apart else gathers + last
    assert slow >= least * (1 - 1e-12)


def test_links_of_their_own_run_side_by_side() -> None:
    # 3 s of which 2 s hide, and 5 s of which 2 s hide: 3 s are left, and a tenth of 4 s hidden
    assert exposed_side_by_side(((3.0, 0.0), (5.0, 0.0)), window=2.0, cost=0.1) == pytest.approx(3.0 + 0.4)
    # half of 4 s is late: 2 s of it hide
    assert exposed_side_by_side(((4.0, 0.5), (0.0, 0.0)), window=9.0, cost=0.0) == pytest.approx(2.0)


@pytest.mark.parametrize("gigabits", [100, 200, 400])
def test_thousands_of_nodes_that_wait_for_the_network_are_no_slower_with_faster_cards(gigabits: int) -> None:
    layout = replace(HSDP, data_parallel_replicate_degree=1250, activation_checkpointing="full")
    found = []
    for card in ("A100-40GB", "H100-80GB"):
        own = nodes(gpu(card), count=2500, network=gigabits * GIGABIT)
        work = ClassWork(node_class=own, micro_batch_size=1, gradient_accumulation_steps=1, batch_per_device=1)
        where = cluster(own, between=gigabits * GIGABIT)
        found.append(estimate_step(SHAPE, layout, where, (work,), strategy="hsdp"))
    ampere, hopper = (f.step_seconds.likely for f in found)
    assert hopper <= ampere
    assert all(f.step_seconds.likely >= f.communication_seconds for f in found)  # one network carries all of it
