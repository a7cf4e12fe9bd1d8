from __future__ import annotations

import pytest

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import ModelShape, Workload
from stratadvisor.strategies.run_length import assumptions, base_batch, extra_tokens_fraction, run_tokens

SEVEN = shape_for_size(7e9)


def test_full_training_of_a_large_model_takes_half_a_million_tokens_a_step() -> None:
    assert base_batch(Workload(model=SEVEN, sequence_length=2048)) * 2048 == 524_288
    assert base_batch(Workload(model=SEVEN, sequence_length=4096)) * 4096 == 524_288


def test_a_small_model_takes_less_in_proportion() -> None:
    model = shape_for_size(125e6)
    tokens = base_batch(Workload(model=model, sequence_length=1024)) * 1024
    # a power of two of sequences lies within a factor sqrt(2) of 0.5M tokens times 0.125
    assert 524_288 * 0.125 / 1.5 < tokens < 524_288 * 0.125 * 1.5


def test_full_training_runs_for_twenty_tokens_per_parameter() -> None:
    assert run_tokens(Workload(model=SEVEN)) == 20 * SEVEN.num_parameters


def test_what_the_user_gives_is_taken_and_not_explained() -> None:
    workload = Workload(model=SEVEN, global_batch_size=96, total_tokens=1e9)
    assert base_batch(workload) == 96
    assert run_tokens(workload) == 1e9
    assert assumptions(workload, 96) == ()


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_what_was_chosen_is_said(method: str) -> None:
    said = assumptions(Workload.model_validate({"model": SEVEN, "method": method}), 256)
    assert len(said) == 2
    assert "256 sequences" in said[0]
    assert "run of" in said[1]


def test_a_module_is_counted_in_items() -> None:
    module = ModelShape(name="net", family="module", num_parameters=25_000_000, num_active_parameters=25_000_000)
    workload = Workload(model=module, sequence_length=1)
    assert base_batch(workload) == 256
    assert run_tokens(workload) == 256 * 100_000


def test_a_batch_forced_by_many_devices_costs_tokens() -> None:
    workload = Workload(model=SEVEN)
    wished = base_batch(workload)
    assert extra_tokens_fraction(workload, wished) == 0.0
    # (1 + 8/4) / (1 + 1/4) - 1 at eight wished batches, critical at four
    assert extra_tokens_fraction(workload, 8 * wished) == pytest.approx(3 / 1.25 - 1)
    given = workload.model_copy(update={"global_batch_size": 8 * wished})
    assert extra_tokens_fraction(given, 8 * wished) == 0.0
