"""Hand-made candidates whose numbers are given: which is taken follows from the documented margins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import candidate, exactly
from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.costs.constants import EAGER_FACTOR, ELEMENTWISE_BACKWARD
from stratadvisor.costs.energy import BUSY_SHARE, IDLE_SHARE
from stratadvisor.planner import ranking
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout
from stratadvisor.strategies.worth import compiled_share

A100 = nodes(gpu("A100-80GB"), count=2)
V100 = nodes(gpu("V100-32GB"))
WHERE = cluster(A100, V100, between=1e10)
ALL = ("time", "cost", "energy")
REPLICA = Layout(engine="ddp", data_parallel_replicate_degree=16)
SHARDED = Layout(engine="fsdp2", data_parallel_shard_degree=16, sharding="parameters")
DIVIDED = replace(SHARDED, data_parallel_shard_degree=8, tensor_parallel_degree=2)
MEGATRON = Layout(engine="megatron", tensor_parallel_degree=8, data_parallel_replicate_degree=2)
LOCAL = Layout(engine="local", data_parallel_replicate_degree=16, sync_interval_steps=8)
OFFLOAD = replace(SHARDED, engine="deepspeed", optimizer_offload="cpu")
LADDER = (
    ("ddp", REPLICA, 0),
    ("fsdp2", SHARDED, 1),
    ("tp_fsdp2", DIVIDED, 2),
    ("megatron_3d", MEGATRON, 3),
    ("diloco", LOCAL, 4),
    ("zero_offload", OFFLOAD, 5),
)


def made(strategy: str, layout: Layout, run: float, where: Cluster = WHERE) -> Candidate:
    return candidate(strategy, where.classes[0], run=run, layout=layout)


def test_time_device_time_and_energy_are_what_is_minimised() -> None:
    found = made("ddp", REPLICA, 1000.0)
    assert ranking.value(found, WHERE, "time") == 1000.0
    assert ranking.value(found, WHERE, "cost") == 16 * 1000.0
    # half of the step computes: the power lies halfway between idle and busy, for 1000 steps of a second
    half = replace(found.time, terms_seconds={"matmul": 0.5, "exposed_communication": 0.5}, step_seconds=exactly(2.0))
    watts = gpu("A100-80GB").power_watts
    assert watts is not None
    share = (IDLE_SHARE[1] + BUSY_SHARE[1]) / 2
    assert ranking.value(replace(found, time=half), WHERE, "energy") == pytest.approx(1000 * 16 * watts * share)


def test_a_device_that_states_no_power_is_assumed_one_to_rank_by_energy() -> None:
    silent = nodes(replace(gpu("A100-80GB"), power_watts=None), count=2)
    assert ranking.value(made("ddp", REPLICA, 10.0, cluster(silent)), cluster(silent), "energy") == 10 * 16 * 300.0
    host = nodes(cpu(), count=2, per_node=1)
    assert ranking.value(made("ddp", REPLICA, 10.0, cluster(host)), cluster(host), "energy") == 10 * 2 * 150.0


@pytest.mark.parametrize(("strategy", "layout", "level"), LADDER)
def test_complexity_rises_with_what_is_asked_of_the_user(strategy: str, layout: Layout, level: int) -> None:
    assert ranking.complexity(made(strategy, layout, 1.0)) == level
    assert ranking.offloads(made(strategy, layout, 1.0)) is (level == 5)
    assert ranking.offloads(made(strategy, replace(layout, parameter_offload="cpu"), 1.0))


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2), (1, 2), (0, 4), (2, 4), (1, 5), (4, 5)])
def test_a_step_up_in_complexity_must_gain_a_tenth(low: int, high: int) -> None:
    simple = made(*LADDER[low][:2], 100.0)
    enough, short = made(*LADDER[high][:2], 89.9), made(*LADDER[high][:2], 90.1)
    for objective in ALL:
        assert ranking.best([enough, simple], WHERE, objective) is enough  # type: ignore[arg-type]
        assert ranking.best([short, simple], WHERE, objective) is simple  # type: ignore[arg-type]


def test_deepspeed_must_gain_a_tenth_over_what_torch_shards_itself() -> None:
    native, library = made("fsdp2", SHARDED, 100.0), replace(SHARDED, engine="deepspeed", sharding="optimizer")
    for run, wins in ((89.9, True), (90.1, False)):
        other = made("zero1", library, run)
        for objective in ALL:
            assert (ranking.best([other, native], WHERE, objective) is other) is wins  # type: ignore[arg-type]
    # nothing else divides: then it is taken at once
    assert ranking.best([made("zero1", library, 500.0)], WHERE, "time") is not None
    # a program of its own is compared with what torch's would take compiled, not with DeepSpeed, which cannot be
    compiled = replace(native, time=replace(native.time, terms_seconds={"matmul": 0.8, "memory_bound": 0.2}))
    far = made("megatron_3d", MEGATRON, 74.0)
    assert ranking.best([compiled, made("zero1", library, 93.0), far], WHERE, "time") is compiled


def test_another_program_is_compared_with_what_the_own_would_take_compiled() -> None:
    own = made("ddp", REPLICA, 100.0)
    own = replace(own, time=replace(own.time, terms_seconds={"matmul": 0.5, "memory_bound": 0.4, "launch": 0.1}))
    # compiled: half of 0.4 s and all launches are saved of each second; then it must gain a tenth, or more
    share = 1 - (0.4 * (1 - 1 / EAGER_FACTOR) + 0.1)
    far, short = made("megatron_3d", MEGATRON, 74.0 * share), made("megatron_3d", MEGATRON, 90.1 * share)
    assert ranking.best([own, far], WHERE, "time") is far
    assert ranking.best([own, short], WHERE, "time") is own
    # what a checkpointed forward pass repeats is saved as well
    again = replace(own, layout=replace(REPLICA, activation_checkpointing="full"))
    share -= 0.4 * (1 - 1 / EAGER_FACTOR) / (1 + ELEMENTWISE_BACKWARD)
    assert compiled_share(again) == pytest.approx(share)
    # nothing more to save where it is compiled already, or DeepSpeed runs it
    for layout in (replace(REPLICA, compiled=True), replace(REPLICA, engine="deepspeed")):
        ready = replace(own, layout=layout)
        assert ranking.best([ready, made("megatron_3d", MEGATRON, 74.0)], WHERE, "time") is not ready


def test_several_steps_up_are_each_compared_with_the_best_so_far() -> None:
    simple, middle, hard = (
        made("ddp", REPLICA, 100.0),
        made("fsdp2", SHARDED, 80.0),
        made("zero_offload", OFFLOAD, 75.0),
    )
    assert ranking.best([hard, simple, middle], WHERE, "time") is middle
    assert ranking.best([hard, simple], WHERE, "time") is hard
    assert ranking.best([], WHERE, "time") is None
    assert ranking.best([replace(simple, feasible=False)], WHERE, "time") is None


def test_what_nobody_can_check_comes_last() -> None:
    blind = nodes(gpu("A100-80GB", memory_known=False), count=2)
    where = cluster(replace(blind, name="blind"), V100, between=1e10)
    unknown = candidate("ddp", where.classes[0], run=1.0, layout=REPLICA)
    known = candidate("ddp", V100, run=100.0, layout=REPLICA)
    assert (ranking.memory_known(unknown, where), ranking.memory_known(known, where)) == (False, True)
    assert ranking.best([unknown, known], where, "time") is known
    assert ranking.best([unknown], where, "time") is unknown
    both = candidate("ddp", *where.classes, run=1.0, layout=REPLICA)
    assert not ranking.memory_known(both, where)


def test_host_memory_matters_to_offload_only() -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=2, host_bytes=None))
    assert ranking.memory_known(made("ddp", REPLICA, 1.0, where), where)
    assert not ranking.memory_known(made("zero_offload", OFFLOAD, 1.0, where), where)
    assert ranking.memory_known(made("zero_offload", OFFLOAD, 1.0), WHERE)


def test_mixing_classes_must_gain_three_percent() -> None:
    alone = candidate("ddp", A100, run=100.0, layout=REPLICA)
    for run, wins in ((96.9, True), (97.1, False)):
        mixed = candidate("ddp", A100, V100, run=run, layout=REPLICA)
        assert (ranking.best([mixed, alone], WHERE, "time") is mixed) is wins
        assert ranking.best([mixed], WHERE, "time") is mixed


def test_of_near_equals_the_smaller_and_simpler_is_taken() -> None:
    small = nodes(gpu("A100-80GB"), count=1)
    where = cluster(A100, replace(small, name="small"), between=1e10)
    large = candidate("ddp", A100, run=100.0, layout=REPLICA)
    for run, wins in ((101.9, True), (102.1, False)):
        few = candidate("ddp", where.classes[1], run=run, layout=REPLICA)
        assert (ranking.best([large, few], where, "time") is few) is wins
    # then the strategy that stands first, less checkpointing, less memory, less time
    kept = candidate("ddp", A100, run=101.0, layout=REPLICA)
    assert ranking.best([candidate("uneven_ddp", A100, run=100.0, layout=REPLICA), kept], WHERE, "time") is kept
    again = replace(REPLICA, activation_checkpointing="selective")
    assert ranking.best([candidate("ddp", A100, run=100.0, layout=again), kept], WHERE, "time") is kept
    assert ranking.best([candidate("ddp", A100, run=100.0, layout=REPLICA, peak=2e9), kept], WHERE, "time") is kept
    assert ranking.best([kept, large], WHERE, "time") is large


def test_a_device_full_to_the_last_twentieth_must_gain_five_percent() -> None:
    total = gpu("A100-80GB").memory_total_bytes
    assert total is not None
    roomy = candidate("ddp", A100, run=100.0, layout=REPLICA, peak=0.94 * total)
    assert not ranking.marginal(roomy, WHERE)
    # dearer by 5 %, and not within the 2 % of a tie: 100 / 1.05 / 1.02 = 93.4
    for run, wins in ((93.0, True), (94.0, False)):
        full = candidate("ddp", A100, run=run, layout=replace(REPLICA), peak=0.96 * total)
        assert ranking.marginal(full, WHERE)
        assert (ranking.best([roomy, full], WHERE, "time") is full) is wins
    both = candidate("ddp", A100, V100, layout=REPLICA, peak=(0.1 * total, 0.4 * total))  # the V100 has 32 GB
    assert ranking.marginal(both, WHERE)
    blind = cluster(nodes(gpu("A100-80GB", memory_known=False), count=2))
    assert not ranking.marginal(candidate("ddp", blind.classes[0], peak=0.99 * total, layout=REPLICA), blind)


def test_the_closest_lacks_least_and_a_number_goes_before_other_reasons() -> None:
    def lacking(shortfall: float, run: float = 1.0) -> Candidate:
        return replace(made("ddp", REPLICA, run), feasible=False, shortfall_bytes=shortfall)

    near, far, barred = lacking(1e9), lacking(5e9), lacking(0.0)
    assert ranking.closest([barred, far, near]) is near
    assert ranking.closest([barred]) is barred
    assert ranking.closest([made("ddp", REPLICA, 1.0)]) is None
    quick = lacking(1e9, run=0.5)
    assert ranking.closest([near, quick]) is quick
