"""The steps in lockstep with which replicas begin that later meet rarely: how many, and what they add to the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import GIGABIT, cluster, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.common import run_steps, timed
from stratadvisor.strategies.diloco import DILOCO
from stratadvisor.strategies.local import lockstep_fraction


def test_lockstep_steps_add_at_most_a_twentieth_to_the_time() -> None:
    assert lockstep_fraction(1.0, 1.5) == 0.05
    assert lockstep_fraction(1.0, 2.0) == 0.05  # 5 % of the steps, each one step longer: 5 % of the time
    assert lockstep_fraction(1.0, 11.0) == pytest.approx(0.005)  # each ten steps longer
    assert lockstep_fraction(1.0, 1001.0) == pytest.approx(5e-5, abs=5e-5)
    assert lockstep_fraction(1.0, 0.9) == 0.05  # nothing to exchange


def test_a_run_pays_for_them() -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=4, per_node=1), between=GIGABIT)
    workload = Workload(model=shape_for_size(350e6), global_batch_size=32, sequence_length=1024, total_tokens=5e9)
    found = [c for c in DILOCO.candidates(where, workload) if c.feasible and c.layout.sync_interval_steps > 1]
    assert found
    for candidate in found:
        share = candidate.settings["sync_warmup_fraction"]
        assert isinstance(share, float)
        every_step = replace(candidate.layout, sync_interval_steps=1, exchange_delay_steps=0)
        lockstep = timed(replace(candidate, layout=every_step), where, workload).time.step_seconds.likely
        local = candidate.time.step_seconds.likely
        steps = run_steps(workload, candidate.global_batch_size) * (1 + candidate.extra_steps_fraction)
        assert candidate.run_seconds.likely == pytest.approx(steps * ((1 - share) * local + share * lockstep))
        assert candidate.run_seconds.likely <= steps * local * 1.06
        assert lockstep > 2 * local  # this network is one where it matters
