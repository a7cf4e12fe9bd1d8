"""Model states of one rank, by arithmetic: ten million parameters, so many bytes each, over so many ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_model import SMALL

from stratadvisor.costs.adapters import (
    base_bytes_per_parameter,
    frozen_head_bytes,
    trained_parameters,
    unpacked_bytes,
)
from stratadvisor.costs.band import DOUBT, FREED_DOUBT, around
from stratadvisor.costs.held import SUB_GROUP_ELEMENTS, Held, held
from stratadvisor.costs.host import PINNED_FACTOR, server_bytes
from stratadvisor.costs.parameters import ParameterCounts, RankParameters, count_parameters, rank_parameters
from stratadvisor.costs.reserve import (
    CPU_KEPT_BYTES,
    CPU_RESERVE_FRACTION,
    FREE_FRACTION,
    KEPT_FRACTION,
    MEGATRON_PASSING_FRACTION,
    PASSING_FRACTION,
    UNCOUNTED_FRACTION,
    UNCOUNTED_FRACTIONS,
    reserve_bytes,
)
from stratadvisor.costs.states import NF4_BYTES, recipe
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape

TOTAL = 1_000_000_000
SHAPE = SMALL.model_copy(update={"num_parameters": TOTAL, "num_active_parameters": TOTAL})
MIXTURE = SHAPE.model_copy(update={"num_experts": 8, "num_experts_per_token": 2, "num_parameters": 10_000_000})
ZERO3 = Layout(engine="deepspeed", data_parallel_shard_degree=8, sharding="parameters")
FSDP = replace(ZERO3, engine="fsdp2")
LOCAL = Layout(engine="local", data_parallel_replicate_degree=8, sync_interval_steps=8, outer_optimizer=True)


def states(layout: Layout, shape: ModelShape = SHAPE, share: float = 1.0) -> Held:
    counts = count_parameters(shape)
    return held(counts, rank_parameters(counts, layout, 0), layout, recipe(layout, counts), server_share=share)


def on_device(found: Held) -> tuple[float, ...]:
    return found.weights, found.gradients, found.states, found.step_copy


def test_replicas_under_autocast_hold_everything_in_fp32() -> None:
    assert on_device(states(Layout(engine="ddp"))) == pytest.approx((4 * TOTAL, 4 * TOTAL, 8 * TOTAL, 0))


def test_deepspeed_divides_by_stage_and_copies_gradients_for_the_step() -> None:
    whole, part = TOTAL, TOTAL / 8
    for sharding, expected in (
        ("optimizer", (2 * whole, 2 * whole, 12 * part, 6 * part)),
        ("gradients", (2 * whole, 2 * part, 12 * part, 6 * part)),
        ("parameters", (2 * part, 2 * part, 12 * part, 6 * SUB_GROUP_ELEMENTS)),
    ):
        found = states(replace(ZERO3, sharding=sharding))  # type: ignore[arg-type]
        assert on_device(found) == pytest.approx(expected)
        assert (found.adapters, found.host, found.nvme) == (0, 0, 0)
    small = states(replace(ZERO3, data_parallel_shard_degree=80))  # a part smaller than what is updated at a time
    assert small.step_copy == pytest.approx(6 * TOTAL / 80)
    single = states(replace(ZERO3, precision="fp32"))
    assert on_device(single) == pytest.approx((4 * part, 4 * part, 12 * part, 4 * SUB_GROUP_ELEMENTS))
    # without ZeRO only its fp16 optimizer copies: every gradient in fp32, and all of them flat
    plain = replace(ZERO3, sharding="none")
    assert states(replace(plain, precision="fp16")).step_copy == pytest.approx(8 * TOTAL)
    assert states(plain).step_copy == 0
    # around a divided model bf16 gradients are summed in fp32, and need no further copy
    piped = states(replace(ZERO3, sharding="optimizer", pipeline_parallel_degree=2))
    assert piped.step_copy == 0


def test_local_steps_keep_the_common_weights_their_momentum_and_what_is_under_way() -> None:
    assert on_device(states(LOCAL)) == pytest.approx((4 * TOTAL, 4 * TOTAL, 16 * TOTAL, 12 * TOTAL))
    late = states(replace(LOCAL, exchange_delay_steps=2))
    assert on_device(late) == pytest.approx((4 * TOTAL, 4 * TOTAL, 24 * TOTAL, 12 * TOTAL))
    group = states(replace(LOCAL, outer_optimizer=False))  # plain averaging
    assert on_device(group) == pytest.approx((4 * TOTAL, 4 * TOTAL, 8 * TOTAL, 8 * TOTAL))


def test_a_worker_pushes_its_gradients_and_its_host_holds_a_part_of_the_server() -> None:
    layout = Layout(engine="async", data_parallel_replicate_degree=4)
    found = states(layout, share=0.25)
    assert on_device(found) == pytest.approx((4 * TOTAL, 4 * TOTAL, 0, 4 * TOTAL))
    assert found.host == pytest.approx(0.25 * server_bytes(4, 8.0, TOTAL) + 4 * TOTAL)


@pytest.mark.parametrize("change", [{"optimizer_offload": "cpu"}, {"parameter_offload": "cpu"}])
def test_fsdp2_moves_all_states_together(change: dict[str, Any]) -> None:
    found = states(replace(FSDP, **change))
    part = TOTAL / 8
    assert on_device(found) == (0, 0, 0, 0)
    assert found.host == pytest.approx((4 + 4 + 8) * part + 0.25 * (4 + 4) * part)


def test_deepspeed_moves_what_is_asked_for() -> None:
    part = TOTAL / 8
    optimizer = states(replace(ZERO3, optimizer_offload="cpu"))
    assert on_device(optimizer) == pytest.approx((2 * part, 0, 0, 0))
    assert optimizer.host == pytest.approx(PINNED_FACTOR * (4 + 12) * part)
    # stage 1 keeps its gradients on the device
    first = states(replace(ZERO3, optimizer_offload="cpu", sharding="optimizer"))
    assert on_device(first) == pytest.approx((2 * TOTAL, 2 * TOTAL, 0, 0))
    weights = states(replace(ZERO3, parameter_offload="cpu"))
    assert on_device(weights) == pytest.approx((0, 2 * part, 12 * part, 6 * SUB_GROUP_ELEMENTS))
    assert weights.host == pytest.approx(PINNED_FACTOR * 2 * part)
    storage = states(replace(ZERO3, optimizer_offload="nvme", parameter_offload="nvme"))
    assert storage.nvme == pytest.approx(14 * part)


def counted(shape: ModelShape, layout: Layout) -> tuple[ParameterCounts, RankParameters]:
    counts = count_parameters(shape)
    return counts, rank_parameters(counts, layout, 0)


def test_adapters_are_trained_and_the_base_is_frozen() -> None:
    layout = Layout(engine="ddp", method="lora", lora_rank=8)
    counts, local = counted(SHAPE, layout)
    # input and output widths: q 128 + 128, k and v 128 + 64, o 128 + 128; three of the MLP 128 + 320
    edges = 256 + 2 * 192 + 256 + 3 * 448
    trained = 8 * edges * 4
    assert trained_parameters(counts, local, layout) == trained
    found = states(layout)
    assert found.adapters == pytest.approx((4 + 4 + 8) * trained)
    assert (found.gradients, found.states, found.step_copy) == (0, 0, 0)
    adapted = 4 * (2 * 128 * (128 + 64) + 3 * 128 * 320)  # weights that get adapters: 16 bit; the rest stays fp32
    assert found.weights == pytest.approx(2 * adapted + 4 * (TOTAL - adapted))
    packed = states(replace(layout, method="qlora"))
    assert packed.weights == pytest.approx(NF4_BYTES * adapted + 4 * (TOTAL - adapted))
    divided = replace(layout, tensor_parallel_degree=2, context_parallel_degree=3)
    assert trained_parameters(counts, local, divided) == trained / 2


def test_frozen_experts_stay_in_16_bits() -> None:
    layout = Layout(engine="ddp", method="qlora")
    counts, local = counted(MIXTURE, layout)
    adapted = 4 * 2 * 128 * (128 + 64)
    experts = 4 * 8 * 3 * 128 * 320
    rest = 10_000_000 - adapted - experts
    each = base_bytes_per_parameter(counts, local, layout, recipe(layout, counts))
    assert each * 10_000_000 == pytest.approx(NF4_BYTES * adapted + 2 * experts + 4 * rest)


def test_one_packed_matrix_is_unpacked_at_a_time_and_a_frozen_head_has_a_copy() -> None:
    layout = Layout(engine="ddp", method="qlora")
    counts, local = counted(SHAPE, layout)
    kinds = recipe(layout, counts)
    assert unpacked_bytes(counts, layout, kinds) == 2 * max(1000 * 128, 128 * 320)
    single = replace(layout, precision="fp32")
    assert unpacked_bytes(counts, single, recipe(single, counts)) == 4 * 1000 * 128
    assert unpacked_bytes(counts, replace(layout, method="lora"), kinds) == 0
    assert frozen_head_bytes(local, layout, kinds) == 2 * 1000 * 128
    assert frozen_head_bytes(local, replace(layout, method="full"), kinds) == 0
    assert frozen_head_bytes(local, single, recipe(single, counts)) == 0  # nothing to cast


def test_experts_lie_on_fewer_replicas_already() -> None:
    layout = replace(ZERO3, expert_parallel_degree=4)
    _, local = counted(MIXTURE, layout)
    experts = 4 * 8 * 3 * 128 * 320
    assert local.experts == pytest.approx(experts / 4)
    # 8 ranks are two replicas of the experts, each in four parts
    expected = (10_000_000 - experts) / 8 + experts / 4 / 2
    assert states(layout, MIXTURE).weights == pytest.approx(2 * expected)
    spread = replace(layout, expert_parallel_degree=8)
    assert states(spread, MIXTURE).weights == pytest.approx(2 * ((10_000_000 - experts) / 8 + experts / 8))


NOTHING = Held(weights=0, gradients=0, states=0, adapters=0, step_copy=0, host=0, nvme=0)


def test_an_allocator_keeps_a_share_of_what_stays_and_of_what_passes() -> None:
    layout = Layout(engine="ddp")
    _, local = counted(SHAPE, layout)
    full = replace(NOTHING, weights=1e9, states=2e9, adapters=4e9, host=64e9)
    alive = (8e9, 1e9, 2e9, 4e9, 8e9)
    kept, passing = 15e9, 15e9
    tails = PASSING_FRACTION * passing
    # half of the tails, and what nobody can count, are given back when memory runs out
    expected = KEPT_FRACTION * kept + (1 - FREE_FRACTION) * tails
    loose = FREE_FRACTION * tails + UNCOUNTED_FRACTION * (kept + passing)
    assert reserve_bytes(local, layout, "cuda", full, alive, None) == pytest.approx((expected, loose))
    sharded = reserve_bytes(local, replace(layout, engine="fsdp2"), "cuda", full, alive, None)
    more = UNCOUNTED_FRACTIONS["fsdp2"] - UNCOUNTED_FRACTION
    assert sharded == pytest.approx((expected, loose + more * (kept + passing)))
    # Megatron-LM's activations leave less: the more so, the less of them checkpointing takes away
    for whole, share in ((1e9, 1.0), (2e9, 0.5), (0.5e9, 1.0)):
        less = share * (PASSING_FRACTION - MEGATRON_PASSING_FRACTION) * 1e9
        found = reserve_bytes(local, layout, "cuda", full, alive, whole)
        assert found == pytest.approx((expected - (1 - FREE_FRACTION) * less, loose - FREE_FRACTION * less))
    on_host = CPU_RESERVE_FRACTION * (kept + passing + 64e9)
    assert reserve_bytes(local, layout, "cpu", full, alive, None) == pytest.approx((on_host, 0))
    for engine, each in CPU_KEPT_BYTES.items():
        found = reserve_bytes(local, replace(layout, engine=engine), "cpu", full, alive, None)  # type: ignore[arg-type]
        assert found == pytest.approx((on_host + each * TOTAL, 0))


def test_doubts_of_terms_add_up_as_independent_errors() -> None:
    (down_a, up_a), (down_l, up_l) = DOUBT["activations"], DOUBT["logits"]
    found = around({"activations": 30e9, "logits": 10e9}, "cuda")
    assert found.likely == 40e9
    assert found.high - 40e9 == pytest.approx(((up_a * 30e9) ** 2 + (up_l * 10e9) ** 2) ** 0.5)
    assert 40e9 - found.low == pytest.approx(((down_a * 30e9) ** 2 + (down_l * 10e9) ** 2) ** 0.5)


def test_freed_blocks_fill_the_device_and_no_more() -> None:
    down, up = DOUBT["activations"]
    free = around({"activations": 40e9}, "cuda", freed=10e9)
    assert free.likely == 50e9
    assert free.high - 50e9 == pytest.approx(((up * 40e9) ** 2 + (FREED_DOUBT[1] * 10e9) ** 2) ** 0.5)
    assert 50e9 - free.low == pytest.approx(((down * 40e9) ** 2 + (FREED_DOUBT[0] * 10e9) ** 2) ** 0.5)
    # 5 of the 10 find room; what activations may need beyond the limit is not freed memory, and stays
    full = around({"activations": 40e9}, "cuda", freed=10e9, limit=45e9)
    assert (full.likely, full.high) == (45e9, pytest.approx(max(45e9, 40e9 * (1 + up))))
    over = around({"activations": 50e9}, "cuda", freed=10e9, limit=45e9)
    assert (over.likely, over.high) == (50e9, pytest.approx(50e9 * (1 + up)))
    # far from the limit it does not matter
    assert around({"activations": 40e9}, "cuda", freed=10e9, limit=900e9) == free
