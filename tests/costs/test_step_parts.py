"""Parts of a step that stand beside its computation, each by arithmetic on the others."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from time_cases import CPU, LLAMA_7B, cluster, ddp, fsdp, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.changing import expected_maximum
from stratadvisor.costs.collectives import Group, all_reduce_seconds, broadcast_seconds
from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.costs.convergence import extra_steps_fraction
from stratadvisor.costs.model_parallel import per_micro_batch_seconds
from stratadvisor.costs.optimizer_step import optimizer_seconds
from stratadvisor.costs.overlap import exposed_seconds, overlap_cost
from stratadvisor.costs.span import relative_width
from stratadvisor.costs.step import estimate_step
from stratadvisor.costs.work import place
from stratadvisor.schema.cluster import Cluster, NodeClass
from stratadvisor.schema.layout import Layout, TimeEstimate

A100 = gpu("A100-80GB")
NODES = nodes(A100, 2, 8)
AT = cluster(NODES, inter_node_bytes_per_second=1e9)
PARAMETERS = 6_738_415_616


def step(layout: Layout, at: Cluster = AT, of: NodeClass = NODES, steps: int = 2, **options: Any) -> TimeEstimate:
    return estimate_step(LLAMA_7B, layout, at, work(of, 2, steps), strategy=options.pop("strategy", "x"), **options)


def term(name: str, layout: Layout, **options: Any) -> float:
    return step(layout, **options).terms_seconds[name]


LOCAL = Layout(engine="local", data_parallel_replicate_degree=16, sync_interval_steps=10)


@pytest.mark.parametrize(("compression", "each"), [("none", 4), ("bf16", 2), ("fp16", 2), ("sign", 4)])
def test_replicas_exchange_their_weights_in_so_many_bytes(compression: str, each: int) -> None:
    across = all_reduce_seconds(each * PARAMETERS, Group(num_nodes=2, ranks_per_node=8), AT)
    found = step(LOCAL, compression=compression)
    assert found.communication_seconds == pytest.approx(across / 10)
    assert found.terms_seconds["exposed_communication"] == pytest.approx(across / 10)
    assert found.exposed_communication_seconds == pytest.approx(across / 10)


def test_ranks_of_a_sharded_replica_exchange_their_own_part() -> None:
    layout = replace(LOCAL, data_parallel_replicate_degree=2, data_parallel_shard_degree=8, sharding="parameters")
    group = Group(num_nodes=2, ranks_per_node=1, groups_per_node=8)
    exchange = all_reduce_seconds(4 * PARAMETERS / 8, group, AT) / 10
    one = nodes(A100, 1, 8)
    inside = step(fsdp(8, engine="local"), cluster(one), one).communication_seconds - all_reduce_seconds(0, group, AT)
    assert step(layout).communication_seconds == pytest.approx(inside + exchange, rel=1e-3)


def test_a_late_exchange_hides_behind_whole_steps() -> None:
    now = step(LOCAL)
    late = replace(LOCAL, exchange_delay_steps=3)
    across = all_reduce_seconds(4 * PARAMETERS, Group(num_nodes=2, ranks_per_node=8), AT)
    alone = now.step_seconds.likely - across / 10
    shown = exposed_seconds(across, 3 * alone, overlap_cost(late, "nccl")) / 10
    assert term("exposed_communication", late) == pytest.approx(shown)
    grouped = replace(late, data_parallel_replicate_degree=2, data_parallel_shard_degree=8)
    without = replace(grouped, sync_interval_steps=10**12, exchange_delay_steps=0)
    window = 3 * step(without).step_seconds.likely
    leaders = all_reduce_seconds(4 * PARAMETERS, Group(num_nodes=2, ranks_per_node=1), AT)
    round_ = broadcast_seconds(4 * PARAMETERS, Group(num_nodes=1, ranks_per_node=8), AT)
    more = (exposed_seconds(leaders, window, overlap_cost(late, "nccl")) + round_) / 10
    base = term("exposed_communication", without)
    assert term("exposed_communication", grouped) - base == pytest.approx(more, rel=1e-6)


def test_stragglers_average_out_over_free_steps() -> None:
    unsteady = replace(NODES, speed_variation=0.05)
    at = cluster(unsteady)
    compute = 2 * micro_batch_seconds(LLAMA_7B, LOCAL, A100, 2).total_seconds
    late = compute * 0.05 * expected_maximum(16)
    assert term("straggler", LOCAL, at=at, of=unsteady) == pytest.approx(late / math.sqrt(10))
    assert term("straggler", ddp(16), at=at, of=unsteady) == pytest.approx(late)
    # every synchronous engine meets in every step
    assert term("straggler", ddp(16, sync_interval_steps=10), at=at, of=unsteady) == pytest.approx(late)
    assert term("straggler", ddp(2), at=at, of=unsteady) == pytest.approx(compute * 0.05 * expected_maximum(2))
    assert term("straggler", Layout(engine="torch"), at=at, of=unsteady) == 0
    assert term("straggler", replace(LOCAL, engine="async"), at=at, of=unsteady) == 0


def test_a_varying_speed_widens_the_band_by_its_coefficient() -> None:
    unsteady = replace(NODES, speed_variation=0.05)
    found = step(Layout(engine="torch"), cluster(unsteady), unsteady).step_seconds
    width = relative_width("catalog", 0.0, assumed=False, cluster=AT) + 0.05 * fitted.SPAN_PER_VARIATION
    assert found.high == pytest.approx(found.likely * (1 + width))
    assert found.low == pytest.approx(found.likely / (1 + width))


@pytest.mark.parametrize(
    ("cores", "workers"),
    [(64.0, 7), (16.0, 1), (4.0, 1), (200.0, 8), (None, 1)],  # one core of each device's stays with its process
)
def test_loader_workers_share_the_sequences_of_a_device(cores: float | None, workers: int) -> None:
    fed = replace(NODES, data_item_seconds=50.0, cpu_cores=cores)
    unfed = replace(fed, data_item_seconds=None)
    plain = step(ddp(16), cluster(unfed), unfed).step_seconds.likely
    found = step(ddp(16), cluster(fed), fed)
    assert found.step_seconds.likely == pytest.approx(50.0 * 4 / workers)
    assert found.terms_seconds["data_wait"] == pytest.approx(50.0 * 4 / workers - plain)


def test_an_earlier_run_of_the_same_device_and_strategy_scales_every_term() -> None:
    plain = step(ddp(16))
    key, own = A100.catalog_key, "my card"
    assert key is not None
    named = replace(NODES, device=replace(A100, name=own))
    for ratios, scale in (
        ({(key, "x"): 1.5}, 1.5),
        ({(own, "x"): 2.0}, 2.0),
        ({(key, "x"): 1.5, (own, "x"): 2.0}, 1.5),
        ({(key, "y"): 1.5}, 1.0),
        ({("another", "x"): 3.0}, 1.0),
    ):
        found = step(ddp(16), cluster(named, inter_node_bytes_per_second=1e9, calibration_time_ratios=ratios), named)
        assert found.terms_seconds == pytest.approx({k: scale * v for k, v in plain.terms_seconds.items()})
        assert found.communication_seconds == pytest.approx(scale * plain.communication_seconds)
        width = found.step_seconds.high / found.step_seconds.likely - 1
        assert (width == pytest.approx(fitted.SPAN_CALIBRATED)) is (scale != 1.0)
    nameless = replace(named, device=replace(named.device, catalog_key=None))
    ratios = {(own, "x"): 2.0}
    found = step(ddp(16), cluster(nameless, inter_node_bytes_per_second=1e9, calibration_time_ratios=ratios), nameless)
    assert found.step_seconds.likely == pytest.approx(2 * plain.step_seconds.likely, rel=0.2)


def test_a_device_that_waits_for_launches_moves_data_meanwhile() -> None:
    layout = Layout(engine="megatron", tensor_parallel_degree=8, data_parallel_replicate_degree=2, sequence_length=64)
    found = step(layout, steps=1).terms_seconds
    _, shown = per_micro_batch_seconds(LLAMA_7B, layout, AT, place(layout, work(NODES, 2, 1)), 2)
    assert found["launch"] > shown > 0  # 128 tokens are nothing to eight devices
    assert found["tensor_parallel"] == 0.0
    long = replace(layout, sequence_length=2048)
    _, shown = per_micro_batch_seconds(LLAMA_7B, long, AT, place(long, work(NODES, 2, 1)), 2)
    found = step(long, steps=1).terms_seconds
    assert found["tensor_parallel"] == pytest.approx(shown - found["launch"])


def test_an_engines_own_step_takes_host_time() -> None:
    host = nodes(CPU, 1, 2)
    at = cluster(host, backend="gloo")
    zero = replace(fsdp(2), engine="deepspeed", sharding="optimizer", precision="fp32")
    for engine, layout in (("ddp", ddp(2, precision="fp32")), ("deepspeed", zero)):
        compute = 2 * micro_batch_seconds(LLAMA_7B, layout, CPU, 2).terms_seconds["launch"]
        own = fitted.ENGINE_HOST_SECONDS_PER_STEP[engine]
        assert term("launch", layout, at=at, of=host) == pytest.approx(compute + own)
        compute = 2 * micro_batch_seconds(LLAMA_7B, layout, A100, 2).terms_seconds["launch"]
        assert term("launch", layout) == pytest.approx(compute + own * fitted.GPU_HOST_SHARE)


def test_prefetched_weights_hide_behind_half_of_the_computation() -> None:
    layout = replace(fsdp(8), engine="deepspeed", optimizer_offload="cpu", parameter_offload="cpu")
    for link in (25e9, 1e8):
        host = nodes(replace(A100, host_link_bytes_per_second=link), 1, 8, host_memory_bandwidth_bytes_per_second=4e11)
        parts = optimizer_seconds(LLAMA_7B, layout, host, PARAMETERS / 8, 8)
        compute = micro_batch_seconds(LLAMA_7B, layout, host.device, 2).total_seconds
        shown = max(0.0, parts.offload_micro_batch_seconds - compute / 2)
        found = term("offload", layout, at=cluster(host), of=host)
        assert found == pytest.approx(parts.offload_seconds + 2 * shown)
    assert shown > 0


def test_workers_push_and_pull_through_one_server() -> None:
    layout = Layout(engine="async", data_parallel_replicate_degree=16, sync_interval_steps=4)
    alone = step(Layout(engine="torch")).step_seconds.likely
    message = 4 * PARAMETERS
    for rate, latency in ((1e12, 0.0), (1e12, 0.5), (1e9, 0.0)):
        at = cluster(NODES, inter_node_bytes_per_second=rate, inter_node_latency_seconds=latency)
        transfer, served = 2 * (message / rate + latency) / 4, 16 * message / rate / 4
        found = step(layout, at)
        assert found.step_seconds.likely == pytest.approx(max(alone + transfer, served))
        assert found.communication_seconds == pytest.approx(max(transfer, served))
        assert found.terms_seconds["exposed_communication"] == pytest.approx(max(transfer, served - alone))
    # inside one node its links carry the exchange
    one = nodes(A100, 1, 8, intra_node_latency_seconds=0.25)
    found = step(replace(layout, data_parallel_replicate_degree=8), cluster(one), one)
    assert found.communication_seconds == pytest.approx(max(2 * (message / 200e9 + 0.25), 8 * message / 200e9) / 4)


def test_assumptions_name_the_links_that_are_used() -> None:
    blind = replace(NODES, intra_node_bytes_per_second=None)
    at = cluster(blind, inter_node_bytes_per_second=None)

    def said(layout: Layout) -> str:
        return " ".join(step(layout, at, blind).assumptions)

    for layout, inside, between in (
        (Layout(engine="torch"), False, False),
        (ddp(8), True, False),
        (ddp(16), True, True),
        (Layout(engine="megatron", tensor_parallel_degree=8), True, False),
        (Layout(engine="megatron", context_parallel_degree=8), True, False),
        (Layout(engine="megatron", tensor_parallel_degree=8, pipeline_parallel_degree=2), True, True),
    ):
        assert ("inside a node" in said(layout)) is inside
        assert ("between nodes" in said(layout)) is between


def test_extra_steps_by_staleness_and_interval_stay_below_their_limit() -> None:
    none = extra_steps_fraction("synchronous", num_workers=64)
    assert none == (0.0, "")
    assert extra_steps_fraction("local_sgd", num_workers=1, sync_interval_steps=100) == (0.0, "")
    assert extra_steps_fraction("local_sgd", num_workers=2, sync_interval_steps=1) == (0.0, "")
    eight, _ = extra_steps_fraction("local_sgd", num_workers=2, sync_interval_steps=8)
    late, _ = extra_steps_fraction("local_sgd", num_workers=2, sync_interval_steps=4, delay_steps=4)
    most, _ = extra_steps_fraction("local_sgd", num_workers=2, sync_interval_steps=500)
    assert (eight, late, most) == pytest.approx((0.05, 0.05, 0.10))
    # logarithmic between: as far from 8 as from 500
    middle, _ = extra_steps_fraction("local_sgd", num_workers=2, sync_interval_steps=round((8 * 500) ** 0.5))
    assert middle == pytest.approx(0.075, rel=0.01)
    with pytest.raises(ValueError, match="unknown kind"):
        extra_steps_fraction("magic", num_workers=2)
