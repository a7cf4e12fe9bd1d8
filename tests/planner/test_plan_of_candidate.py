"""What a plan says of a hand-made candidate: predictions, warnings, flips, and which candidate is picked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fact_builders import candidate
from planning_clusters import GIGABIT, PROVENANCE, cluster, cpu, gpu, nodes, outcome

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.energy import BUSY_SHARE, IDLE_SHARE
from stratadvisor.planner.build import YEAR_SECONDS, build_plan
from stratadvisor.planner.choice import Admission, _left_out, _or_part, _pick, admission
from stratadvisor.planner.flips import _scale_between, _scale_inside
from stratadvisor.planner.infeasible import _freed, _message, _scores
from stratadvisor.planner.memory_flip import host_flip
from stratadvisor.planner.predict import predict
from stratadvisor.planner.request import Request
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate, Layout, MemoryEstimate, Span
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB

A100, V100 = nodes(gpu("A100-80GB"), count=2), nodes(gpu("V100-32GB"))
WHERE = cluster(A100, V100, between=100 * GIGABIT)
ONLY = cluster(A100, between=100 * GIGABIT)
DDP = Layout(engine="ddp", data_parallel_replicate_degree=16, sequence_length=2048)
SHARDED = Layout(engine="fsdp2", data_parallel_shard_degree=16, sharding="parameters", sequence_length=2048)
OFFLOADED = replace(SHARDED, engine="deepspeed", optimizer_offload="cpu")
# 1000 steps of 128 sequences of 2048 tokens
WORKLOAD = Workload(
    model=shape_for_size(1e9),
    total_tokens=1000 * 128 * 2048,
    price_per_device_hour=3.0,
    grid_carbon_grams_per_kilowatt_hour=400.0,
)


def spread(found: Candidate, low: float, likely: float, high: float) -> Candidate:
    time = replace(
        found.time,
        step_seconds=Span(low=low, likely=likely, high=high),
        terms_seconds={"matmul": 0.75 * likely, "exposed_communication": 0.25 * likely},
        tokens_per_step=128 * 2048.0,
        model_flops_per_step=1e18,
        exposed_communication_seconds=0.25 * likely,
    )
    run = Span(low=1000 * low, likely=1000 * likely, high=1000 * high)
    return replace(found, time=time, run_seconds=run)


FOUND = spread(candidate("ddp", A100, batch=8, layout=DDP), 1.6, 2.0, 4.0)


def test_a_prediction_is_arithmetic_on_the_step() -> None:
    found = predict(FOUND, ONLY, WORKLOAD)
    assert (found.step_seconds.low, found.step_seconds.likely, found.step_seconds.high) == (1.6, 2.0, 4.0)
    rates = found.tokens_per_second
    assert (rates.low, rates.likely, rates.high) == pytest.approx(tuple(128 * 2048 / t for t in (4.0, 2.0, 1.6)))
    used = found.model_flops_utilization
    assert used is not None
    peak = 16 * 312e12
    assert (used.low, used.likely, used.high) == pytest.approx(tuple(1e18 / t / peak for t in (4.0, 2.0, 1.6)))
    assert (found.run_steps, found.run_tokens) == (1000, 1000 * 128 * 2048)
    assert found.exposed_communication_fraction == pytest.approx(0.25)
    assert (found.model_flops_per_step, found.calibrated) == (1e18, False)
    assert found.cost is not None
    hours = tuple(16 * 3.0 * 1000 * t / 3600 for t in (1.6, 2.0, 4.0))
    assert (found.cost.low, found.cost.likely, found.cost.high) == pytest.approx(hours)
    assert found.energy_joules is not None
    watts = gpu("A100-80GB").power_watts
    assert watts is not None
    for share, seconds, joules in zip(range(3), (1.6, 2.0, 4.0), ("low", "likely", "high"), strict=True):
        power = 16 * watts * (0.25 * IDLE_SHARE[share] + 0.75 * BUSY_SHARE[share])
        assert getattr(found.energy_joules, joules) == pytest.approx(1000 * seconds * power)
    assert found.energy_joules_per_thousand_samples is not None
    assert found.energy_joules_per_thousand_samples.likely == pytest.approx(found.energy_joules.likely / 128)
    assert found.carbon_grams is not None
    assert found.carbon_grams.likely == pytest.approx(found.energy_joules.likely / 3.6e6 * 400)


def test_an_inexact_method_needs_more_steps_and_tokens() -> None:
    more = predict(replace(FOUND, extra_steps_fraction=0.25), ONLY, WORKLOAD)
    assert (more.run_steps, more.run_tokens) == (1250, pytest.approx(1250 * 128 * 2048))
    least = predict(FOUND, ONLY, WORKLOAD.model_copy(update={"total_tokens": 1}))
    assert least.run_steps == 1


def test_what_is_not_known_is_not_predicted() -> None:
    silent = cluster(replace(A100, device=replace(A100.device, power_watts=None, peak_flops_per_second={})))
    found = predict(FOUND, silent, WORKLOAD.model_copy(update={"price_per_device_hour": None}))
    assert (found.energy_joules, found.carbon_grams, found.cost, found.model_flops_utilization) == (None,) * 4
    host = nodes(cpu(), count=2)
    assert predict(FOUND, cluster(host), WORKLOAD).model_flops_utilization is None
    no_grid = predict(FOUND, ONLY, WORKLOAD.model_copy(update={"grid_carbon_grams_per_kilowatt_hour": None}))
    assert no_grid.carbon_grams is None
    assert no_grid.energy_joules is not None


def plan(
    found: Candidate, where: Cluster = WHERE, request: Request | None = None, workload: Workload = WORKLOAD
) -> Plan:
    return build_plan(
        found,
        where,
        workload,
        request or Request(),
        outcome(),
        alternatives=(),
        flips=(),
        warnings=(),
        assumptions=(),
        provenance=PROVENANCE,
    )


def warnings(found: Candidate, where: Cluster = WHERE, **options: Any) -> str:
    return "\n".join(plan(found, where, **options).warnings)


def test_memory_up_to_the_last_twentieth_is_marginal() -> None:
    total = gpu("A100-80GB").memory_total_bytes
    assert total is not None
    for share, said in ((0.94, False), (0.96, True)):
        found = candidate("ddp", A100, layout=DDP, peak=share * total)
        assert ("memory is marginal on A100-80GB" in warnings(found)) is said


def test_processes_that_may_not_fit_their_host_are_named() -> None:
    for host, said in ((255 * GIB, False), (257 * GIB, True)):  # 8 of them on a host of 2048 GiB
        text = warnings(candidate("ddp", A100, layout=DDP, host=host))
        assert ("8 processes on a node of 8xA100-80GB" in text) is said
    blind = cluster(nodes(gpu("A100-80GB"), count=2, host_bytes=None))
    text = warnings(candidate("zero_offload", blind.classes[0], layout=OFFLOADED, host=10 * GIB), blind)
    assert "host memory of 8xA100-80GB unknown: whether the 80 GiB offloaded fit is open" in text
    assert "host memory" not in warnings(candidate("ddp", blind.classes[0], layout=DDP, host=10 * GIB), blind)


def test_devices_that_wait_longer_than_a_fifth_are_named() -> None:
    pair = candidate("ddp", A100, V100, layout=replace(DDP, data_parallel_replicate_degree=24))
    for own, said in ((0.79, True), (0.81, False)):
        shares = (replace(pair.shares[0], compute_seconds=own), replace(pair.shares[1], compute_seconds=1.0))
        text = warnings(replace(pair, shares=shares))
        assert (f"devices of {A100.name} wait {1 - own:.0%} of each step" in text) is said
        assert V100.name not in text
    slow = (replace(pair.shares[0], compute_seconds=0.1), replace(pair.shares[1], compute_seconds=1.0))
    free = replace(pair, strategy="async_sgd", layout=replace(pair.layout, engine="async"), shares=slow)
    assert "wait" not in warnings(free)  # asynchronous workers wait for nobody


def test_a_run_of_years_and_a_batch_beyond_any_published_are_named() -> None:
    for factor, said in ((0.99, False), (2.0, True)):
        found = candidate("ddp", A100, layout=DDP, run=factor * YEAR_SECONDS)
        assert (f"the run would take {factor:.3g} years" in warnings(found)) is said
    # 16 devices x 512 sequences x 2048 tokens are 16.8M, Llama 3's largest
    for batch, said in ((512, False), (513, True)):
        assert ("more than any published run" in warnings(candidate("ddp", A100, layout=DDP, batch=batch))) is said


@pytest.mark.parametrize(
    ("layout", "stage"),
    [
        (DDP, 0),
        (SHARDED, 0),
        (replace(OFFLOADED, sharding="optimizer"), 1),
        (replace(OFFLOADED, sharding="gradients"), 2),
        (OFFLOADED, 3),
    ],
)
def test_a_zero_stage_is_deepspeeds_name_for_what_is_divided(layout: Layout, stage: int) -> None:
    found = plan(candidate("zero_offload" if layout.engine == "deepspeed" else "ddp", A100, layout=layout))
    assert found.memory.zero_stage == stage
    assert found.memory.sharding == layout.sharding


def test_requests_and_settings_reach_the_plan() -> None:
    found = replace(FOUND, settings={"compression": "bf16", "staleness_bound": 4, "outer_learning_rate": 0.7})
    made = plan(found, request=Request(pin_memory=False, data_loader_workers=5, family="synchronous"))
    assert made.synchronization.compression == "bf16"
    assert made.synchronization.max_staleness_steps == 4
    assert made.settings == {"staleness_bound": 4, "outer_learning_rate": 0.7, "pin_memory": False}
    assert (made.data_loader_workers, made.family, made.compile_model) == (5, "synchronous", False)
    assert plan(found, request=Request(family="local_sgd")).family == "synchronous"  # its own, where it is no member
    assert plan(found).family == "synchronous"
    assert plan(replace(found, layout=replace(DDP, compiled=True))).compile_model
    group = made.groups[0]
    assert (group.batch_per_device, group.gradient_accumulation_steps, group.memory_available_origin) == (
        8,
        8,
        "declared",
    )
    assert not made.batch.uneven
    assert plan(
        candidate("uneven_ddp", A100, V100, batch=(6, 2), layout=replace(DDP, data_parallel_replicate_degree=24))
    ).batch.uneven


def test_memory_that_is_free_goes_before_all_of_it() -> None:
    for free, origins, expected in (
        (60 * GIB, {"memory_free_bytes": "measured", "memory_total_bytes": "reported"}, (60 * GIB, "measured")),
        (None, {"memory_free_bytes": "measured", "memory_total_bytes": "reported"}, (80 * GIB, "reported")),
        (None, {}, (80 * GIB, "declared")),
    ):
        device = replace(gpu("A100-80GB", free_bytes=free), memory_total_bytes=80 * GIB, origins=origins)
        where = cluster(nodes(device, count=2, hostnames=("a", "b")))
        found = candidate("ddp", where.classes[0], layout=DDP, peak=10e9, compute=0.5)
        group = plan(found, where).groups[0]
        assert (group.memory_available_bytes, group.memory_available_origin) == expected
        assert (group.num_nodes, group.devices_per_node, group.hostnames) == (2, 8, ("a", "b"))
        peak = group.memory_peak_bytes
        assert (peak.low, peak.likely, peak.high) == (5e9, 9e9, 10e9)
        assert group.compute_seconds == 0.5


def test_candidates_are_sorted_by_what_the_flowchart_says() -> None:
    inside, outside = candidate("ddp", A100, layout=DDP), candidate("diloco", A100, layout=DDP)
    barred = candidate("fsdp2", A100, layout=replace(SHARDED, activation_checkpointing="full"))
    request = Request(family="synchronous", checkpointing_allowed=False)
    found = admission(WHERE, WORKLOAD, (inside, outside, barred), request)
    assert (found.admitted, found.others) == ((inside,), (outside,))
    assert found.refused == ((barred, "the rules rule out activation checkpointing"),)


def sorted_as(*admitted: Candidate, others: tuple[Candidate, ...] = (), refused: Any = ()) -> Admission:
    return Admission(admitted=admitted, others=others, refused=refused)


def test_the_family_gives_way_and_then_the_rules() -> None:
    request = Request(family="local_sgd")
    lacking = candidate("diloco", A100, layout=DDP, feasible=False, reason="needs more")
    other = candidate("ddp", A100, layout=DDP)
    found, said = _pick(sorted_as(lacking, others=(other,)), WHERE, WORKLOAD, request)
    assert found is other
    assert "the family local sgd, but nothing of it fits: needs more; " in said[0]
    found, said = _pick(sorted_as(lacking, refused=((other, "the rules say no"),)), WHERE, WORKLOAD, request)
    assert found is other
    assert said[0].startswith("the rules say no, but nothing that keeps to it fits")
    assert _pick(sorted_as(lacking), WHERE, WORKLOAD, request) == (None, [])
    assert (
        "the family any, but nothing of it fits; "
        in _pick(sorted_as(others=(other,)), WHERE, WORKLOAD, Request())[1][0]
    )


def test_an_exact_method_on_alike_nodes_alone_goes_before_a_slower_family_over_all() -> None:
    request = Request(family="local_sgd")
    over_all = candidate("diloco", A100, V100, layout=DDP, run=100.0)
    part = candidate("ddp", A100, layout=DDP, run=97.0)
    found, said = _or_part(over_all, (part,), WHERE, WORKLOAD, request)
    assert found is part
    assert "is predicted 3% faster, exact" in said[0]
    assert _or_part(
        over_all, (replace(part, run_seconds=Span(low=98.5, likely=98.5, high=98.5)),), WHERE, WORKLOAD, request
    ) == (
        over_all,
        [],
    )
    # not where the family is exact, nor a part that is none, nor another inexact method
    assert _or_part(over_all, (part,), WHERE, WORKLOAD, Request(family="synchronous")) == (over_all, [])
    assert _or_part(over_all, (part,), ONLY, WORKLOAD, request) == (over_all, [])
    inexact = candidate("diloco", A100, layout=DDP, run=50.0)
    assert _or_part(over_all, (inexact,), WHERE, WORKLOAD, request) == (over_all, [])
    mixed = candidate("ddp", A100, replace(V100, num_nodes=1), layout=DDP, run=50.0)
    assert _or_part(over_all, (mixed,), WHERE, WORKLOAD, request) == (over_all, [])


def test_devices_left_out_are_counted_and_compared() -> None:
    chosen = candidate("ddp", A100, layout=DDP, run=100.0)
    whole = candidate("fsdp2", A100, V100, layout=SHARDED, run=125.0)
    assert _left_out(chosen, sorted_as(chosen), ONLY, WORKLOAD) == []
    said = _left_out(chosen, sorted_as(chosen, others=(whole,)), WHERE, WORKLOAD)[0]
    assert said.startswith("8 of 24 devices are left out: with all of them, ")
    assert said.endswith("takes 125% of the time")
    cost = WORKLOAD.model_copy(update={"objective": "cost"})
    assert _left_out(chosen, sorted_as(whole), WHERE, cost)[0].endswith(
        f"takes {1.25 * 24 / 16:.0%} of the device hours"
    )
    same = candidate("fsdp2", A100, V100, layout=SHARDED, run=100.4)
    assert _left_out(chosen, sorted_as(same), WHERE, WORKLOAD)[0].endswith("gains nothing that the prediction can tell")
    nothing = _left_out(chosen, sorted_as(chosen), WHERE, WORKLOAD)[0]
    assert nothing.endswith("nothing that uses all of them fits")
    few = WORKLOAD.model_copy(update={"global_batch_size": 23})
    assert _left_out(chosen, sorted_as(chosen), WHERE, few)[0].endswith(
        "23 sequences a step are fewer; a global batch of 24 uses all"
    )
    enough = WORKLOAD.model_copy(update={"global_batch_size": 24})
    assert _left_out(chosen, sorted_as(chosen), WHERE, enough) == [nothing]


def test_scaling_a_link_scales_every_measurement_of_it() -> None:
    sweep = ((1024.0, 1e-4), (1e6, 1e-3))
    where = replace(
        cluster(replace(A100, network_bytes_per_second=2e9), V100, between=1e9),
        inter_node_sweep=sweep,
        intra_node_sweep=sweep,
    )
    halved = tuple((size, 2 * seconds) for size, seconds in sweep)
    between = _scale_between(where, 0.5)
    assert (between.inter_node_bytes_per_second, between.inter_node_sweep) == (0.5e9, halved)
    assert [c.network_bytes_per_second for c in between.classes] == [1e9, None]
    assert (between.intra_node_sweep, between.classes[0].intra_node_bytes_per_second) == (sweep, 3e11)
    inside = _scale_inside(where, 0.5)
    assert (inside.intra_node_sweep, inside.inter_node_sweep) == (halved, sweep)
    assert [c.intra_node_bytes_per_second for c in inside.classes] == [1.5e11, 1.5e11]
    alone = _scale_inside(cluster(nodes(gpu("A100-80GB"), per_node=1)), 0.5)
    assert alone.classes[0].intra_node_bytes_per_second is None
    assert _scale_between(cluster(A100), 0.5).inter_node_bytes_per_second is None


def test_unknown_host_memory_is_worth_asking_for_when_offload_would_gain_a_tenth() -> None:
    blind = cluster(nodes(gpu("A100-80GB"), count=2, host_bytes=None), V100, between=1e10)
    chosen = candidate("fsdp2", blind.classes[0], layout=SHARDED, run=100.0)

    def flip(run: float, own: Any = None, **options: Any) -> Any:
        classes = own or (blind.classes[0],)
        able = candidate("zero_offload", *classes, layout=OFFLOADED, run=run, host=10 * GIB, **options)
        return host_flip(chosen, (chosen, able), blind, WORKLOAD)

    found = flip(89.0)
    assert (found.fact, found.now, found.then) == ("host memory of a node of 8xA100-80GB", "unknown", "zero_offload")
    assert found.threshold == ">= 80 GiB"
    assert flip(91.0) is None
    assert flip(50.0, own=(V100,)) is None  # its hosts are known
    assert flip(50.0, own=(blind.classes[0], V100)) is None
    assert flip(50.0, feasible=False) is None
    offloads = candidate("zero_offload", blind.classes[0], layout=OFFLOADED, run=100.0)
    better = candidate("zero_offload", blind.classes[0], layout=OFFLOADED, run=50.0)
    assert host_flip(offloads, (better,), blind, WORKLOAD) is None


def test_memory_that_something_else_holds_is_counted_free_but_for_a_twentieth() -> None:
    total = gpu("A100-80GB").memory_total_bytes
    assert total is not None
    for free, said in ((0.94 * total, True), (0.96 * total, False)):
        busy = nodes(gpu("A100-80GB", free_bytes=free))
        freed, held = _freed(cluster(busy, V100, between=1e9))
        assert bool(held) is said
        expected = 0.95 * total if said else free
        assert freed.classes[0].device.memory_free_bytes == pytest.approx(expected)
        assert freed.classes[1] == V100
    half = nodes(gpu("A100-80GB", free_bytes=0.5 * total))
    assert _freed(cluster(half))[1] == "40 GiB of A100-80GB"
    host = nodes(replace(cpu(), memory_free_bytes=1e9))
    assert _freed(cluster(host)) == (cluster(host), "")


def lacking(strategy: str, layout: Layout, shortfall: float, reason: str, logits: float = 0.0) -> Candidate:
    found = candidate(strategy, A100, layout=layout, feasible=False, reason=reason)
    memory = MemoryEstimate(
        terms_bytes={"logits": logits}, peak_bytes=Span(low=100.0, likely=100.0, high=100.0), peak_phase="loss"
    )
    return replace(found, shortfall_bytes=shortfall, shares=(replace(found.shares[0], memory=memory),))


def test_the_closest_way_is_named_and_what_offload_would_lack() -> None:
    near, far = lacking("ddp", DDP, 5.0, "needs 5"), lacking("fsdp2", SHARDED, 9.0, "needs 9")
    moved = lacking("zero_offload", OFFLOADED, 1.0, "needs 1 of the host")
    said = _message(WORKLOAD, (far, near, moved))
    assert "hand-made, needs 5; with offload, needs 1 of the host" in said
    assert "needs 9" not in said
    only = _message(WORKLOAD, (moved,))
    assert only.count("needs 1 of the host") == 1
    assert _message(WORKLOAD, ()).startswith("no strategy can train")


def test_scores_of_a_quarter_of_the_peak_are_named() -> None:
    for logits, said in ((24.0, False), (26.0, True)):
        assert bool(_scores(lacking("ddp", DDP, 1.0, "", logits))) is said


def test_every_degree_of_the_layout_is_the_plans() -> None:
    layout = Layout(
        engine="megatron",
        sequence_length=2048,
        data_parallel_replicate_degree=2,
        data_parallel_shard_degree=3,
        tensor_parallel_degree=4,
        pipeline_parallel_degree=5,
        context_parallel_degree=7,
        expert_parallel_degree=6,
        virtual_pipeline_chunks=8,
        sequence_parallel=True,
        compiled=True,
    )
    host = nodes(gpu("A100-80GB"), count=105)  # 105 x 8 = 2 x 3 x 4 x 5 x 7 devices
    found = replace(candidate("megatron_3d", host, layout=layout), global_batch_size=2 * 3 * 8)
    made = plan(found, cluster(host, between=100 * GIGABIT))
    names = [name for name in type(made.parallelism).model_fields if name != "world_size"]
    assert {name: getattr(made.parallelism, name) for name in names} == {name: getattr(layout, name) for name in names}
    assert made.parallelism.world_size == 840
    # Megatron-LM fuses its kernels by hand: torch.compile is not asked of it
    assert not made.compile_model
    whole = replace(layout, tensor_parallel_degree=1, data_parallel_shard_degree=12)
    found = replace(found, layout=whole, global_batch_size=2 * 12 * 8)
    assert not plan(found, cluster(host, between=100 * GIGABIT)).parallelism.sequence_parallel
