"""Which attention kernels and norms a program brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import LLAMA_7B, gpu

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.compute import layout_rates, micro_batch_seconds
from stratadvisor.costs.rates import device_rates
from stratadvisor.schema.layout import Layout

EAGER = Layout(engine="fsdp2", sharding="parameters", data_parallel_shard_degree=8, sequence_length=8192)


def attention(layout: Layout, name: str) -> float:
    return micro_batch_seconds(LLAMA_7B, layout, gpu(name), 1).terms_seconds["attention"]


def test_the_second_flash_attention_is_about_twice_as_fast_on_an_a100() -> None:
    # arXiv:2307.08691, abstract: around 2x
    first, second = (attention(replace(EAGER, flash_generation=n), "A100-80GB") for n in (1, 2))
    assert 1.5 < first / second < 2.2
    # and reaches 50 to 73 % of the peak in a benchmark: causal, 32 layers, forward 4 S^2 h / 2, backward 2.5 times that
    flops = 3.5 * 32 * 2 * 8192**2 * 4096
    assert 0.45 < flops / second / 3.12e14 < 0.73


def test_it_does_not_know_hopper_and_does_not_run_on_turing() -> None:
    flops = 3.5 * 32 * 2 * 8192**2 * 4096
    # arXiv:2407.08608, section 1: 35 % of an H100's peak
    assert 0.2 < flops / attention(EAGER, "H100") / 9.89e14 < 0.36
    older = [attention(replace(EAGER, precision="fp16", flash_generation=n), "T4") for n in (1, 2)]
    assert older[0] == older[1]


def test_short_sequences_fill_fewer_units() -> None:
    per_pair = [attention(replace(EAGER, sequence_length=n), "A100-80GB") / n**2 for n in (512, 2048, 8192)]
    assert per_pair == sorted(per_pair, reverse=True)
    assert per_pair[0] / per_pair[2] == pytest.approx((512 + 450) / 512 * 8192 / (8192 + 450))


def test_a_power_limit_slows_products_and_not_attention() -> None:
    card = gpu("H100")
    limited = replace(card, power_watts=500.0)
    plain, slow = (micro_batch_seconds(LLAMA_7B, EAGER, device, 1).terms_seconds for device in (card, limited))
    assert slow["attention"] == pytest.approx(plain["attention"])
    assert slow["matmul"] / plain["matmul"] == pytest.approx((700 / 500) ** fitted.POWER_EXPONENT, rel=0.01)
    assert slow["memory_bound"] == plain["memory_bound"]


def test_graphics_chips_with_all_units_and_little_power_run_slower() -> None:
    # NVIDIA's datasheets: RTX 4090 330.3 TFLOP/s at its full rate, which GeForce locks to half, and 450 W;
    # RTX 6000 Ada 364.2 at 300 W; L4 121 at 72 W. RTX 3090 142.3 and 350 W; A10 125 at 150 W
    base = {name: fitted.MATMUL_EFFICIENCY[name]["half"] for name in ("ada", "ampere graphics", "ampere")}
    for name, generation, power in (
        ("4090", "ada", 1.0),
        ("RTX 6000 Ada", "ada", 300 / 364.2 / (450 / 330.3)),
        ("L4", "ada", 72 / 121 / (450 / 330.3)),
        ("3090", "ampere graphics", 1.0),
        ("A10", "ampere graphics", 150 / 125 / (350 / 142.3)),
        ("A100-80GB", "ampere", 1.0),
    ):
        share = device_rates(gpu(name), "bf16").efficiency / base[generation]
        assert share == pytest.approx(power**fitted.POWER_EXPONENT, rel=0.01), name
    assert device_rates(gpu("A10"), "fp32").efficiency == fitted.MATMUL_EFFICIENCY["ampere graphics"]["fp32"]
    # a limit below the card's own comes on top
    capped = replace(gpu("L4"), power_watts=36.0)
    both = device_rates(capped, "bf16").efficiency / device_rates(gpu("L4"), "bf16").efficiency
    assert both == pytest.approx(0.5**fitted.POWER_EXPONENT)


def test_norms_in_python_move_fp32_values() -> None:
    card = gpu("A100-80GB")
    fused, python, compiled = (
        micro_batch_seconds(LLAMA_7B, layout, card, 1).forward_seconds
        for layout in (EAGER, replace(EAGER, python_norms=True), replace(EAGER, python_norms=True, compiled=True))
    )
    # two norms of 4096 a layer, 36 bytes each; rotary of queries and keys, 20 bytes
    moved = 32 * 8192 * (2 * 36 * 4096 + 20 * 2 * 4096)
    assert python - fused == pytest.approx(moved / layout_rates(EAGER, card).memory_bytes_per_second)
    assert compiled < fused
    with_bias = LLAMA_7B.model_copy(update={"norm_bias": True})
    assert (
        micro_batch_seconds(with_bias, replace(EAGER, python_norms=True), card, 1).forward_seconds
        == micro_batch_seconds(with_bias, EAGER, card, 1).forward_seconds
    )
