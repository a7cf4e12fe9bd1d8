"""Products in 8 bit: expected values from counting bytes and from published peaks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, cluster, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.compute import head_seconds, layout_rates, micro_batch_seconds
from stratadvisor.costs.data_parallel import traffic
from stratadvisor.costs.flops import layer_products
from stratadvisor.costs.fp8 import (
    Quantised,
    fp8_rates,
    fp8_refusal,
    linear_weights,
    quantising_bytes,
    runs_in_fp8,
    weights_seconds,
)
from stratadvisor.costs.model_parallel import per_micro_batch_seconds
from stratadvisor.costs.rates import device_rates
from stratadvisor.costs.work import place
from stratadvisor.schema.layout import Layout

H100 = gpu("H100")
MEGATRON = Layout(engine="megatron", compiled=True, sequence_length=4096)
DELAYED = replace(MEGATRON, fp8_scaling="delayed")
TITAN = Layout(engine="fsdp2", compiled=True, sharding="parameters", data_parallel_shard_degree=8, fp8_scaling="tensor")
MIXTURE = LLAMA_7B.model_copy(update={"num_experts": 8, "num_experts_per_token": 2})


@pytest.mark.parametrize(
    ("name", "scaling", "said"),
    [
        ("A100-80GB", "none", ""),
        ("A100-80GB", "tensor", "has no fp8 matrix units"),
        ("T4", "delayed", "has no fp8 matrix units"),
        ("4090", "tensor", ""),
        ("H100", "delayed", ""),
        ("H100", "block", "take no block scales"),
        ("B200", "block", ""),
        ("MI300X", "tensor", ""),
    ],
)
def test_ada_and_later_multiply_8_bits_and_blackwell_in_blocks(name: str, scaling: str, said: str) -> None:
    refusal = fp8_refusal(gpu(name), scaling)  # type: ignore[arg-type]
    assert said in refusal
    assert bool(refusal) is bool(said)


def test_the_peak_is_the_catalogs_and_a_measured_rate_goes_before_it() -> None:
    half = device_rates(H100, "bf16")
    eight = fp8_rates(half, H100)
    assert eight.peak_flops_per_second == 1.9789e15  # dense, NVIDIA's H100 datasheet
    # 1403 of 1979 TFLOP/s in fp8, 795 of 989 in bf16 (ml-engineering's tables)
    assert eight.efficiency / half.efficiency == pytest.approx((1402.6 / 1979) / (794.5 / 989), rel=0.01)
    measured = replace(H100, measured_flops_per_second={"bf16": 7.0e14, "fp8": 1.2e15})
    known = fp8_rates(device_rates(measured, "bf16"), measured)
    assert known.sustained_flops_per_second == pytest.approx(1.2e15 * fitted.SUSTAINED_SHARE)


def test_who_quantises_what_and_how_often() -> None:
    counts = {"inputs": 1.0, "gradients": 10.0, "weights": 100.0}
    assert quantising_bytes(MEGATRON, **counts) == Quantised(0, 0)
    # read 16 bit, write 8 bit twice; the tensor's own maximum takes another read
    assert quantising_bytes(DELAYED, **counts) == Quantised(4, 40)
    assert quantising_bytes(replace(DELAYED, fp8_scaling="tensor"), **counts) == Quantised(6, 60)
    # maximum, read, write; inputs again in backward, the other order of inputs, gradients and weights
    assert quantising_bytes(TITAN, **counts) == Quantised(5, 7 * 11 + 2 * 100)


def test_only_linear_layers_run_in_8_bits() -> None:
    before, after = (micro_batch_seconds(LLAMA_7B, layout, H100, 1) for layout in (MEGATRON, DELAYED))
    assert after.terms_seconds["attention"] == before.terms_seconds["attention"]
    assert head_seconds(LLAMA_7B, DELAYED, H100, 1) == head_seconds(LLAMA_7B, MEGATRON, H100, 1)
    assert 0.5 < after.terms_seconds["matmul"] / before.terms_seconds["matmul"] < 0.75
    products = next(iter(layer_products(LLAMA_7B)))[0]
    # inputs of qkv, output, gate with up, and down; gradients of all of them
    inputs = sum(p.in_width for p in products)
    gradients = sum(p.out_width * p.count for p in products)
    assert inputs == 3 * 4096 + 11008
    assert gradients == 3 * 4096 + 4096 + 2 * 11008 + 4096
    passes = 32 * 4096 * 4 * (inputs + gradients) / layout_rates(DELAYED, H100).memory_bytes_per_second
    assert after.terms_seconds["memory_bound"] - before.terms_seconds["memory_bound"] == pytest.approx(passes)


def test_the_router_of_a_mixture_stays_in_16_bits() -> None:
    products = next(iter(layer_products(MIXTURE)))[0]
    assert [runs_in_fp8(p, DELAYED) for p in products].count(False) == 1
    assert not any(runs_in_fp8(p, MEGATRON) for p in products)
    narrow = 32 * (4 * 4096 * 4096 + 8 * 3 * 4096 * 11008)
    assert linear_weights(MIXTURE) == narrow
    # once a step: read 16 bit, write 8 bit in both orders
    rates = device_rates(H100, "bf16")
    assert weights_seconds(MIXTURE, DELAYED, rates) == pytest.approx(4 * narrow / rates.memory_bytes_per_second)
    assert weights_seconds(MIXTURE, MEGATRON, rates) == 0
    eighth = replace(DELAYED, fp8_scaling="tensor", tensor_parallel_degree=2, expert_parallel_degree=4)
    assert weights_seconds(MIXTURE, eighth, rates) == pytest.approx(6 * narrow / 8 / rates.memory_bytes_per_second)


def test_gathers_move_8_bits() -> None:
    node = nodes(H100, 1, 8)
    at = cluster(node)
    tensor = replace(MEGATRON, tensor_parallel_degree=8)
    placement = place(tensor, work(node))
    whole = per_micro_batch_seconds(LLAMA_7B, tensor, at, placement, 1)[0]
    # half of an all-reduce's volume is the gather, and that is halved
    for layout, share in (
        (replace(tensor, fp8_scaling="delayed"), 0.75),
        (replace(tensor, fp8_scaling="delayed", sequence_parallel=False), 1.0),
    ):
        assert per_micro_batch_seconds(LLAMA_7B, layout, at, placement, 1)[0] == pytest.approx(share * whole)
    placed = place(TITAN, work(node))
    plain, eight = (
        traffic(LLAMA_7B, replace(TITAN, fp8_scaling=scaling), at, placed).forward  # type: ignore[arg-type]
        for scaling in ("none", "tensor")
    )
    linear = linear_weights(LLAMA_7B) / LLAMA_7B.num_parameters
    assert eight / plain == pytest.approx(1 - linear / 2, rel=0.02)  # a little more: small messages


def test_a_rate_does_not_stand_in_for_an_instruction() -> None:
    # a file may declare a rate for an A100, whose matrix units (8.0) have no 8-bit floating point
    declared = replace(gpu("A100-80GB"), measured_flops_per_second={"fp8": 6e14})
    assert fp8_refusal(declared, "tensor") == f"{declared.name} has no fp8 matrix units"


def test_without_any_fp8_rate_the_products_are_no_faster() -> None:
    half = device_rates(H100, "bf16")
    peaks = {k: v for k, v in H100.peak_flops_per_second.items() if k != "fp8"}
    assert fp8_rates(half, replace(H100, peak_flops_per_second=peaks)) == half


def test_each_of_the_ranks_that_divide_the_weights_quantises_its_own() -> None:
    rates = device_rates(H100, "bf16")
    whole = linear_weights(LLAMA_7B) * (4 + 2) / rates.memory_bytes_per_second  # read, twice written; and a maximum
    alone = replace(TITAN, data_parallel_shard_degree=1)
    assert weights_seconds(LLAMA_7B, alone, rates) == pytest.approx(whole)
    assert weights_seconds(LLAMA_7B, TITAN, rates) == pytest.approx(whole / 8)
    assert weights_seconds(LLAMA_7B, replace(TITAN, sharding="none"), rates) == pytest.approx(whole)
