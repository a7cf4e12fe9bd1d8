"""Tensor, pipeline, context and expert parallelism: valid degrees only, all of them, and the batch they share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from planning_clusters import GIGABIT, cluster, cpu, gpu, nodes, plan_for

from stratadvisor.catalog import models
from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner.ranking import complexity
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import ModelShape, Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.megatron_degrees import Degrees, degrees
from stratadvisor.strategies.selections import selections
from stratadvisor.strategies.site import layout_for, sharing_site
from stratadvisor.strategies.tp_fsdp2 import divides
from stratadvisor.strategies.uneven import wants_unequal_shares

FAST = 3200 * GIGABIT
SLOW = 25 * GIGABIT
SMALL = shape_for_size(7e9)
LARGE = shape_for_size(70e9)


def h100(count: int) -> Cluster:
    return cluster(nodes(gpu("H100-80GB"), count=count, intra=4.5e11, network=FAST), between=FAST)


def a100(count: int, between: float) -> Cluster:
    return cluster(nodes(gpu("A100-80GB"), count=count, network=between), between=between)


def found(strategy: str, where: Cluster, workload: Workload) -> list[Candidate]:
    return list(STRATEGIES[strategy].candidates(where, workload))


def fitting(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.feasible]


def ways(where: Cluster, workload: Workload) -> list[Degrees]:
    return list(degrees(where, workload))


@pytest.mark.parametrize("strategy", ["tp_fsdp2", "megatron_3d"])
def test_degrees_multiply_and_divide_the_model(strategy: str) -> None:
    workload = Workload(model=LARGE)
    candidates = found(strategy, h100(4), workload)
    assert {c.layout.tensor_parallel_degree for c in candidates} >= {2, 4, 8}
    for c in candidates:
        layout = c.layout
        together = layout.tensor_parallel_degree * layout.pipeline_parallel_degree * layout.context_parallel_degree
        assert layout.data_parallel_degree * together == c.num_devices
        assert 8 % layout.tensor_parallel_degree == 0  # neighbours in a node
        assert LARGE.num_key_value_heads % layout.tensor_parallel_degree == 0
        share = c.shares[0]
        assert share.micro_batch_size * share.gradient_accumulation_steps == share.batch_per_device
        assert share.batch_per_device * layout.data_parallel_degree == c.global_batch_size


def test_heads_that_do_not_divide_leave_only_smaller_degrees() -> None:
    two_groups = LARGE.model_copy(update={"num_key_value_heads": 2})
    workload = Workload(model=two_groups)
    assert [d for d in (2, 4, 8) if divides(workload, d)] == [2]
    assert {w.tensor for w in ways(h100(2), workload)} == {1, 2}
    assert not found("tp_fsdp2", h100(2), Workload(model=two_groups.model_copy(update={"vocab_size": 50257})))


def test_stages_have_equally_many_layers_or_fewer_at_the_ends() -> None:
    # 126 layers (Llama 3 405B): 16 stages of 8 once embedding and output count as layers, as published
    shape = LARGE.model_copy(update={"num_layers": 126})
    by_stages = {w.pipeline: w for w in ways(h100(128), Workload(model=shape))}
    assert by_stages[2].stage_layers == ()  # 63 each
    assert by_stages[16].stage_layers == (7, *[8] * 14, 7)
    assert by_stages[16].counts_ends(126)
    assert by_stages[16].chunks(126) == [1, 2, 4, 8]
    # 32 stages: 4 each in the middle leave 126 - 30 x 4 = 6 for the two ends
    assert by_stages[32].stage_layers == (3, *[4] * 30, 3)
    # 64 stages: 2 each in the middle leave 126 - 62 x 2 = 2
    assert by_stages[64].stage_layers == (1, *[2] * 62, 1)
    assert all(sum(w.stage_layers) == 126 for w in by_stages.values() if w.stage_layers)
    # 109 layers on 8 stages: 14 each in the middle leave 25, which no flag of one less each makes
    odd = {w.pipeline: w for w in ways(h100(16), Workload(model=LARGE.model_copy(update={"num_layers": 109})))}
    assert odd[8].stage_layers == (13, *[14] * 6, 12)
    assert odd[8].chunks(109) == [1]


def test_sequences_are_divided_only_when_long_and_experts_only_where_there_are_some() -> None:
    short, long = (Workload(model=LARGE, sequence_length=n) for n in (4096, 131072))
    assert {w.context for w in ways(h100(8), short)} == {1}
    assert {w.context for w in ways(h100(8), long)} >= {1, 2, 4, 8}
    mixture = models.lookup("mixtral-8x7b")
    assert mixture is not None
    found_ways = ways(h100(2), Workload(model=mixture))
    assert {w.expert for w in found_ways} == {1, 2, 4, 8}
    for way in found_ways:
        assert 16 // (way.tensor * way.pipeline) % way.expert == 0


@pytest.mark.parametrize(
    "change",
    [{"method": "lora"}, {"optimizer": "muon"}, {"model": SMALL.model_copy(update={"family": "encoder"})}],
)
def test_megatron_is_not_proposed_for_what_its_program_does_not_train(change: dict[str, object]) -> None:
    workload = Workload.model_validate({"model": SMALL, **change})
    assert not found("megatron_3d", h100(2), workload)
    assert not found("megatron_3d", cluster(nodes(cpu(), count=4, per_node=2), between=1e9), Workload(model=SMALL))


def test_stages_beat_gathering_over_a_slow_network_and_not_over_nvlink() -> None:
    slow = plan_for(a100(4, SLOW), Workload(model=LARGE), family="synchronous")
    assert (slow.strategy, slow.target) == ("megatron_3d", "megatron")
    assert slow.parallelism.pipeline_parallel_degree > 1
    assert slow.parallelism.tensor_parallel_degree > 1
    assert slow.parallelism.sequence_parallel
    assert any("this project has not run it" in said for said in slow.assumptions)
    assert not slow.compile_model
    # one node, 7B: what whole layers can do is within a tenth, and simpler
    near = plan_for(a100(1, FAST), Workload(model=SMALL), family="synchronous")
    assert near.parallelism.tensor_parallel_degree == near.parallelism.pipeline_parallel_degree == 1


def test_a_small_gain_does_not_bring_in_another_program() -> None:
    # 70B on 128 H100: divided layers are faster, by less than what another program must gain
    workload = Workload(model=LARGE)
    plan = plan_for(h100(16), workload, family="synchronous")
    best = min(fitting(found("megatron_3d", h100(16), workload)), key=lambda c: c.run_seconds.likely)
    ratio = best.run_seconds.likely / plan.predicted.run_seconds.likely
    # a quarter, and what compiling spares the own program: less than half of its passes over memory and its launches
    terms, step = plan.predicted.time_terms_seconds, plan.predicted.step_seconds.likely
    spared = (terms["memory_bound"] / 2 + terms["launch"]) / step
    assert plan.strategy == "megatron_3d" or ratio >= 0.75 * (1 - spared) * 0.98
    assert complexity(best) == 3


def test_more_stages_hold_less_and_interleaving_fills_the_pipeline() -> None:
    workload = Workload(model=LARGE, global_batch_size=256)
    candidates = fitting(found("megatron_3d", h100(8), workload))
    plain = [c for c in candidates if c.layout.virtual_pipeline_chunks == 1 and c.layout.pipeline_parallel_degree > 1]
    interleaved = [c for c in candidates if c.layout.virtual_pipeline_chunks > 1]
    assert interleaved
    for c in interleaved:
        assert c.shares[0].gradient_accumulation_steps % c.layout.pipeline_parallel_degree == 0
        same = replace(c.layout, virtual_pipeline_chunks=1)
        for other in plain:
            if other.layout == same:
                bubble = "pipeline_bubble"
                assert c.time.terms_seconds[bubble] < other.time.terms_seconds[bubble]


def test_a_plan_of_more_experts_keeps_total_and_active_parameters_apart() -> None:
    mixture: ModelShape | None = models.lookup("mixtral-8x7b")
    assert mixture is not None
    workload = Workload(model=mixture)
    candidates = fitting(found("megatron_3d", h100(4), workload))
    divided = [c for c in candidates if c.layout.expert_parallel_degree > 1]
    assert divided
    assert any("capacity factor 1" in note for note in divided[0].notes)
    for c in divided:
        # six FLOPs for each active parameter and token, attention and the output on top; the idle experts cost none
        least = 6 * (mixture.num_active_parameters - 2 * mixture.vocab_size * mixture.hidden_size)
        per_token = c.time.model_flops_per_step / c.time.tokens_per_step
        assert least < per_token < 1.5 * 6 * mixture.num_active_parameters


def test_one_stage_is_one_piece() -> None:
    assert Degrees(tensor=2, pipeline=1, context=1, expert=1).chunks(32) == [1]
    # 32 layers on 4 stages: 8 on each, in 1, 2, 4 or 8 pieces
    assert Degrees(tensor=2, pipeline=4, context=1, expert=1).chunks(32) == [1, 2, 4, 8]


def test_devices_that_work_together_are_never_more_than_there_are() -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=3, per_node=4), between=FAST)
    whole = selections(where)[0]
    workload = Workload(model=SMALL, global_batch_size=6)
    assert sharing_site("megatron_3d", whole, workload, together=16) is None
    # 12 devices, 8 at a time: two whole nodes, and each group takes all 6 sequences
    shared = sharing_site("megatron_3d", whole, workload, together=8)
    assert shared is not None
    at, each = shared
    assert (at.cluster.num_nodes, at.cluster.num_devices, each) == (2, 8, 6)
    assert at.notes == ("12 devices are no multiple of 8, 8 are",)


def test_one_class_never_wants_unequal_shares() -> None:
    where = a100(2, FAST)
    at, _ = sharing_site("ddp", selections(where)[0], Workload(model=SMALL)) or (None, 0)
    assert at is not None
    layout = layout_for(at, "ddp", replicate=16)
    assert not wants_unequal_shares(at, layout, 17)
