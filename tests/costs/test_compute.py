from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from time_cases import CPU, LLAMA_7B, gpu

from stratadvisor.costs.compute import head_seconds, micro_batch_seconds
from stratadvisor.costs.flops import model_flops_per_sequence
from stratadvisor.costs.rates import compute_format, device_rates, product_seconds
from stratadvisor.schema.layout import Layout

A100 = gpu("A100-80GB")
PLAIN = Layout(engine="torch")


def test_terms_add_up_to_forward_backward_and_recomputation() -> None:
    for layout in (PLAIN, replace(PLAIN, activation_checkpointing="full"), replace(PLAIN, method="qlora")):
        time = micro_batch_seconds(LLAMA_7B, layout, A100, 2)
        assert sum(time.terms_seconds.values()) == pytest.approx(time.total_seconds)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    micro_batch=st.integers(1, 32),
    length=st.sampled_from([128, 512, 2048, 8192]),
    engine=st.sampled_from(["torch", "ddp", "fsdp2", "deepspeed", "megatron"]),
    name=st.sampled_from(["A100-80GB", "H100", "4090", "T4", "B200", "MI300X"]),
    compiled=st.booleans(),
)
def test_no_device_computes_faster_than_its_peak(
    micro_batch: int, length: int, engine: str, name: str, compiled: bool
) -> None:
    layout = Layout(engine=engine, precision="fp16", sequence_length=length, compiled=compiled)  # type: ignore[arg-type]
    device = gpu(name)
    seconds = micro_batch_seconds(LLAMA_7B, layout, device, micro_batch).total_seconds
    flops = micro_batch * model_flops_per_sequence(LLAMA_7B, length)
    assert flops / seconds < device.peak_flops_per_second["fp16"]


def test_a_faster_device_is_not_slower_and_more_work_takes_longer() -> None:
    seconds = [micro_batch_seconds(LLAMA_7B, PLAIN, gpu(n), 4).total_seconds for n in ("A100-80GB", "H100")]
    assert seconds[1] < seconds[0]
    growing = [micro_batch_seconds(LLAMA_7B, PLAIN, A100, n).total_seconds for n in (1, 2, 4, 8, 64)]
    assert growing == sorted(growing)
    assert growing[-1] / 64 < growing[0]  # a sequence of a large batch is cheaper


def test_full_checkpointing_adds_about_a_forward_and_selective_less() -> None:
    none, selective, full = (
        micro_batch_seconds(LLAMA_7B, replace(PLAIN, activation_checkpointing=kind), A100, 4)
        for kind in ("none", "selective", "full")
    )
    assert none.recompute_seconds == 0
    assert 0 < selective.recompute_seconds < full.recompute_seconds < full.forward_seconds
    assert full.backward_seconds == none.backward_seconds


def test_adapters_skip_the_weight_gradients_and_unpacking_costs() -> None:
    full, lora, qlora = (
        micro_batch_seconds(LLAMA_7B, replace(PLAIN, method=method), A100, 8) for method in ("full", "lora", "qlora")
    )
    assert lora.terms_seconds["matmul"] == pytest.approx(full.terms_seconds["matmul"] * 2 / 3, rel=0.05)
    assert lora.total_seconds < qlora.total_seconds


def test_tensor_and_pipeline_parallelism_divide_the_work() -> None:
    whole = micro_batch_seconds(LLAMA_7B, replace(PLAIN, engine="megatron"), A100, 8).terms_seconds["matmul"]
    for change in ({"tensor_parallel_degree": 4}, {"pipeline_parallel_degree": 4}, {"context_parallel_degree": 4}):
        part = micro_batch_seconds(LLAMA_7B, replace(PLAIN, engine="megatron", **change), A100, 8)
        assert whole / 4 * 0.85 < part.terms_seconds["matmul"] < whole / 4 * 1.5


def test_the_head_belongs_to_the_last_stage_only() -> None:
    staged = replace(PLAIN, engine="megatron", pipeline_parallel_degree=2)
    whole = micro_batch_seconds(LLAMA_7B, replace(PLAIN, engine="megatron"), A100, 4).terms_seconds["matmul"]
    half = micro_batch_seconds(LLAMA_7B, staged, A100, 4).terms_seconds["matmul"]
    assert half < whole / 2
    assert head_seconds(LLAMA_7B, staged, A100, 4) > 0


def test_a_measured_rate_goes_before_the_catalog() -> None:
    slow = replace(A100, measured_flops_per_second={"bf16": 100e12})
    rates = device_rates(slow, "bf16")
    assert rates.basis == "measured"
    assert rates.sustained_flops_per_second < 100e12
    assert device_rates(A100, "bf16").basis == "catalog"
    assert device_rates(A100, "bf16").sustained_flops_per_second < 312e12


def test_a_format_the_units_lack_runs_as_fp32() -> None:
    turing = gpu("T4")
    assert compute_format("bf16", turing) == "fp32"
    assert compute_format("fp16", turing) == "fp16"
    assert device_rates(turing, "bf16").peak_flops_per_second == turing.peak_flops_per_second["fp32"]


def test_a_lower_power_limit_slows_the_products() -> None:
    h100 = gpu("H100")
    limited = replace(h100, power_watts=500.0)
    ratio = (
        device_rates(limited, "bf16").sustained_flops_per_second / device_rates(h100, "bf16").sustained_flops_per_second
    )
    assert 500 / 700 < ratio < 1


def test_an_unknown_device_is_assumed_and_said() -> None:
    nobody = replace(A100, name="X", catalog_key=None, architecture="unknown", peak_flops_per_second={})
    rates = device_rates(nobody, "bf16")
    assert rates.basis == "assumed"
    assert any("X" in note for note in rates.assumptions)


def test_products_on_a_cpu_follow_the_measured_sizes() -> None:
    sized = replace(CPU, matmul_by_size={"fp32": {64: 1e10, 512: 1e11}})
    rates = device_rates(sized, "fp32")
    large = 2 * 512.0**3 / product_seconds(rates, 512, 512, 512)
    small = 2 * 64.0**3 / product_seconds(rates, 64, 64, 64)
    assert large == pytest.approx(1e11, rel=0.05)
    assert small == pytest.approx(1e10, rel=0.05)


def test_a_disturbed_measurement_of_a_large_product_is_not_believed() -> None:
    # 1024 was timed while something else ran: a larger product cannot be four times slower
    sized = replace(CPU, matmul_by_size={"fp32": {512: 1e11, 1024: 2.5e10}})
    rates = device_rates(sized, "fp32")
    assert 2 * 1024.0**3 / product_seconds(rates, 1024, 1024, 1024) == pytest.approx(1e11, rel=0.05)
