"""Where a formula changes its form: the last value before, the first after; and numbers that have a physical limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.band import CPU_HIGH, CPU_LOW, DOUBT, FREED_DOUBT, around
from stratadvisor.costs.convergence import extra_steps_fraction
from stratadvisor.costs.energy import busy_fraction, step_energy_joules
from stratadvisor.costs.held import held
from stratadvisor.costs.host import PROCESS_BYTES
from stratadvisor.costs.memo import Memo
from stratadvisor.costs.memory import estimate
from stratadvisor.costs.parameters import ParameterCounts, count_parameters, rank_parameters
from stratadvisor.costs.rates import device_rates
from stratadvisor.costs.states import BITSANDBYTES_BLOCK, NF4_BYTES, recipe, shard_degrees
from stratadvisor.costs.step import estimate_step
from stratadvisor.schema.layout import Layout, MemoryEstimate, Span, TimeEstimate
from stratadvisor.schema.workload import ModelShape

A100 = gpu("A100-80GB")


def test_no_share_of_a_rate_is_more_than_all_of_it() -> None:
    shares = {name: v for name, v in vars(fitted).items() if name.endswith("_SHARE") and isinstance(v, float)}
    assert len(shares) > 10
    for name, table in fitted.MATMUL_EFFICIENCY.items():
        shares |= {f"{name} {kind}": value for kind, value in table.items()}
    shares |= fitted.OVERLAP_COST | fitted.EAGER_PRODUCT_SHARE
    exposed = (
        "TENSOR_PARALLEL_EXPOSED",
        "TENSOR_PARALLEL_OVERLAPPED",
        "CONTEXT_PARALLEL_EXPOSED",
        "PIPELINE_SEND_EXPOSED",
    )
    shares |= {name: getattr(fitted, name) for name in (*exposed, "LEVELS_IN_SERIES")}
    assert {name: value for name, value in shares.items() if not 0 < value <= 1} == {}


def test_numbers_that_are_counted_or_cited_are_what_their_source_says() -> None:
    assert fitted.FLASH_BACKWARD_FLOPS == 5 / 2  # five products for two (arXiv:2205.14135, section 3)
    assert 1.03 <= fitted.WEIGHT_GRADIENT_SLOWDOWN <= 1.08
    assert fitted.ZERO_BUCKET_BYTES == 5e8 * 2  # DeepSpeed's default number of elements, 16 bit
    assert fitted.OVERLAP_BUCKET_BYTES == 25 * 1024 * 1024  # torch DDP's bucket_cap_mb
    assert fitted.AUTOCAST_FORWARD_BYTES == 4 + 2  # read fp32, write 16 bit
    # 4 bits, 8 bits for each 64 of them, 32 bits for each 256 of those (arXiv:2305.14314, section 3)
    assert pytest.approx(4 + 8 / 64 + 32 / (64 * 256)) == NF4_BYTES * 8
    assert BITSANDBYTES_BLOCK == 256
    assert fitted.SPAN_CALIBRATED <= fitted.SPAN_CATALOG < fitted.SPAN_MEASURED < fitted.SPAN_ASSUMED < 1


def test_no_doubt_takes_more_than_the_whole_term_away() -> None:
    for down, up in (*DOUBT.values(), FREED_DOUBT, (CPU_LOW, CPU_HIGH)):
        assert 0 < down <= 1
        assert 0 < up <= 1
    host = around({"parameters": 1e9}, "cpu")
    assert (host.low, host.high) == pytest.approx((1e9 / (1 + CPU_LOW), 1e9 * (1 + CPU_HIGH)))


def test_a_cache_forgets_everything_when_it_is_full() -> None:
    asked: list[str] = []
    document, memo = object(), Memo[int](2)

    def get(key: str) -> None:
        memo.get((document,), key, lambda: asked.append(key) or 1)

    for key in ("a", "b", "a", "b"):
        get(key)
    assert asked == ["a", "b"]
    for key in ("c", "b"):  # the third fills it over
        get(key)
    assert asked == ["a", "b", "c", "b"]
    memo.get((object(),), "b", lambda: asked.append("other") or 1)
    assert asked[-1] == "other"
    get("b")
    get("b")
    assert asked[-2:] == ["other", "b"]
    memo.clear()
    get("b")
    assert asked[-2:] == ["b", "b"]


def timed(**terms: float) -> TimeEstimate:
    return TimeEstimate(
        terms_seconds=terms,
        step_seconds=Span(low=1, likely=1, high=1),
        communication_seconds=0,
        exposed_communication_seconds=0,
        model_flops_per_step=0,
        tokens_per_step=0,
    )


def test_a_device_that_does_nothing_else_is_busy() -> None:
    assert busy_fraction(timed()) == 1.0
    assert busy_fraction(timed(matmul=1.0)) == 1.0
    for waiting in ("exposed_communication", "tensor_parallel", "pipeline_bubble", "data_wait", "straggler", "offload"):
        assert busy_fraction(timed(matmul=1.0, optimizer=2.0, **{waiting: 1.0})) == 0.75
    assert step_energy_joules(timed(matmul=1.0), [], 4) == Span(low=0, likely=0, high=0)


def test_a_card_that_the_catalog_lacks_has_no_limit_to_compare_with() -> None:
    stranger = replace(A100, name="nobody's", catalog_key=None, power_watts=100.0)
    assert device_rates(stranger, "bf16").efficiency == fitted.MATMUL_EFFICIENCY["ampere"]["half"]


def test_staleness_costs_the_more_the_older_and_the_interval_besides() -> None:
    assert extra_steps_fraction("asynchronous", num_workers=4)[0] == 0.0
    costs = [extra_steps_fraction("asynchronous", num_workers=4, staleness=s)[0] for s in (0.0, 1.0, 2.0, 1e300)]
    assert costs == sorted(set(costs))
    fresh, note = extra_steps_fraction("asynchronous", num_workers=4, staleness=2.0)
    assert f"gradients 2 steps old are taken to need {fresh:.0%} more steps" in note
    seldom, _ = extra_steps_fraction("asynchronous", num_workers=4, staleness=2.0, sync_interval_steps=8)
    assert seldom == pytest.approx(fresh + 0.05)
    half, _ = extra_steps_fraction("hierarchical", num_workers=2, sync_interval_steps=2)
    assert half == pytest.approx(0.05 / 3)  # log(2) / log(8)
    for kind in ("synchronous", "single"):
        assert extra_steps_fraction(kind, num_workers=64, sync_interval_steps=9, staleness=3.0) == (0.0, "")


def peak(layout: Layout, ranks: int = 8, kind: str = "cuda", **options: float) -> MemoryEstimate:
    return estimate(LLAMA_7B, layout, device_kind=kind, ranks_per_node=ranks, **options)  # type: ignore[arg-type]


def test_a_counted_module_is_one_embedding_and_nothing_else() -> None:
    module = ModelShape(name="m", family="module", num_parameters=1000, num_active_parameters=1000, flops_per_item=1.0)
    assert count_parameters(module) == ParameterCounts(
        embedding=1000,
        head=0,
        per_layer=0,
        experts_per_layer=0,
        adapted_per_layer=0,
        adapter_edges_per_layer=0,
        num_layers=0,
        largest_matrix=100,
        total=1000,
    )


def test_a_vision_tower_stands_with_the_embedding() -> None:
    seeing = LLAMA_7B.model_copy(update={"num_vision_parameters": 300_000_000})
    plain, found = count_parameters(LLAMA_7B), count_parameters(seeing)
    assert found.total == plain.total + 300_000_000
    assert found.embedding == plain.embedding + 300_000_000
    assert (found.per_layer, found.head) == (plain.per_layer, plain.head)


def test_the_fullest_stage_may_be_the_last_or_one_between() -> None:
    one = Layout(engine="megatron", tensor_parallel_degree=8)
    # with one micro-batch none waits: two stages of 16 layers, and the scores of the second
    two = peak(replace(one, pipeline_parallel_degree=2, micro_batch_size=8))
    assert two.terms_bytes["logits"] > 0
    between = replace(one, pipeline_parallel_degree=4, stage_layers=(2, 26, 2, 2))
    assert peak(between).terms_bytes["parameters"] == pytest.approx(
        2 * 26 / 32 * (LLAMA_7B.num_parameters - 2 * 32000 * 4096) / 8, rel=1e-3
    )


def test_ranks_of_a_host_share_its_server_and_have_a_process_each() -> None:
    worker = Layout(engine="async", data_parallel_replicate_degree=8)
    alone, shared, none = (peak(worker, ranks).host_bytes_per_rank for ranks in (1, 8, 0))
    assert alone == none
    # the gradients of the rank itself, its process, and the server's memory or an eighth of it
    own = 4 * LLAMA_7B.num_parameters + PROCESS_BYTES
    assert alone - own == pytest.approx(8 * (shared - own))
    on_host = peak(worker, kind="cpu")
    assert on_host.host_bytes_per_rank == on_host.peak_bytes.likely
    assert on_host.terms_bytes["buffers"] > alone - own


def test_freed_blocks_stop_at_ninety_eight_percent_of_the_device() -> None:
    layout = Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=8, micro_batch_size=2)
    free = peak(layout).peak_bytes.likely
    tight = peak(layout, device_memory_bytes=(free - 1e8) / 0.98).peak_bytes.likely
    assert tight == pytest.approx(free - 1e8)
    assert peak(layout, device_memory_bytes=2 * free).peak_bytes.likely == free


def test_everything_in_bf16_is_two_bytes_and_the_states_of_two_moments_four() -> None:
    counts = count_parameters(LLAMA_7B)
    pure = recipe(Layout(engine="fsdp2", precision="bf16_pure"), counts)
    assert (pure.weight, pure.gradient, pure.master, pure.optimizer, pure.states) == (2, 2, 0, 4, 4)
    assert (pure.compute, pure.residual, pure.autocast) == (2, 2, False)
    megatron = recipe(Layout(engine="megatron"), counts)
    assert (megatron.weight, megatron.gradient, megatron.master, megatron.optimizer) == (2, 4, 4, 8)
    single = recipe(Layout(engine="megatron", precision="fp32"), counts)
    assert (single.weight, single.gradient, single.master, single.residual) == (4, 4, 0, 4)


@pytest.mark.parametrize(
    ("layout", "degrees"),
    [
        (Layout(engine="ddp", data_parallel_replicate_degree=8), (1, 1, 1)),
        (Layout(engine="fsdp2", data_parallel_shard_degree=4, sharding="none"), (4, 4, 4)),
        (Layout(engine="deepspeed", data_parallel_shard_degree=4, sharding="optimizer"), (1, 1, 4)),
        (Layout(engine="deepspeed", data_parallel_shard_degree=4, sharding="gradients"), (1, 4, 4)),
        (Layout(engine="deepspeed", data_parallel_shard_degree=4, sharding="parameters"), (4, 4, 4)),
        (
            Layout(
                engine="fsdp2",
                data_parallel_replicate_degree=2,
                data_parallel_shard_degree=4,
                context_parallel_degree=3,
                sharding="parameters",
            ),
            (12, 12, 12),
        ),
        # Megatron's distributed optimizer divides over all data-parallel ranks
        (
            Layout(
                engine="megatron",
                data_parallel_replicate_degree=2,
                data_parallel_shard_degree=4,
                context_parallel_degree=3,
                sharding="optimizer",
            ),
            (1, 1, 24),
        ),
    ],
)
def test_ranks_that_divide_weights_gradients_and_states(layout: Layout, degrees: tuple[int, int, int]) -> None:
    assert shard_degrees(layout) == degrees


def test_fsdp2_moves_everything_also_when_both_are_asked_for() -> None:
    layout = Layout(
        engine="fsdp2",
        data_parallel_shard_degree=8,
        sharding="parameters",
        optimizer_offload="cpu",
        parameter_offload="cpu",
    )
    counts = count_parameters(LLAMA_7B)
    found = held(counts, rank_parameters(counts, layout, 0), layout, recipe(layout, counts), server_share=1.0)
    assert (found.weights, found.gradients, found.states) == (0, 0, 0)
    assert found.host == pytest.approx((16 + 2) * LLAMA_7B.num_parameters / 8)


def test_sequences_of_a_step_are_those_of_the_ranks_that_see_different_ones() -> None:
    node = nodes(A100, 1, 8)
    divided = Layout(engine="megatron", tensor_parallel_degree=2, data_parallel_replicate_degree=4)
    made = estimate_step(LLAMA_7B, divided, cluster(node), work(node, 2, 3), strategy="x")
    assert made.tokens_per_step == 4 * 2 * 3 * 2048
    fewer = replace(divided, data_parallel_replicate_degree=2)  # half of the node
    assert estimate_step(LLAMA_7B, fewer, cluster(node), work(node, 2, 3), strategy="x").tokens_per_step == 2 * 6 * 2048


def test_only_weights_of_another_width_than_the_products_are_cast() -> None:
    counts = count_parameters(LLAMA_7B)
    for engine in ("torch", "ddp", "fsdp2", "deepspeed", "megatron", "local", "async"):
        for precision in ("fp32", "bf16", "fp16", "bf16_pure"):
            kinds = recipe(Layout(engine=engine, precision=precision), counts)  # type: ignore[arg-type]
            assert kinds.compute == (4 if precision == "fp32" else 2)
            # FSDP2 casts when it gathers, once, and not at each use
            assert kinds.autocast == (kinds.weight != kinds.compute and engine != "fsdp2"), (engine, precision)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(engine="torch", micro_batch_size=8, activation_checkpointing="full"),
        Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=64, micro_batch_size=8),
        Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=64, activation_checkpointing="full"),
        Layout(engine="deepspeed", sharding="optimizer", data_parallel_shard_degree=64),
        Layout(engine="megatron", tensor_parallel_degree=8, activation_checkpointing="full"),
    ],
)
def test_a_device_with_room_for_everything_bounds_nothing(layout: Layout) -> None:
    assert peak(layout, device_memory_bytes=1e16) == peak(layout)
