from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.costs.buffers import context_bytes, gathered_bytes, zero_bucket_elements
from stratadvisor.costs.held import held
from stratadvisor.costs.moments import moments
from stratadvisor.costs.parameters import count_parameters, rank_parameters
from stratadvisor.costs.states import recipe
from stratadvisor.schema.layout import Layout


@given(st.integers(min_value=1, max_value=10**13))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_a_bucket_has_an_even_number_of_elements_within_its_limits(num_parameters: int) -> None:
    elements = zero_bucket_elements(num_parameters)
    assert elements % 2 == 0
    assert 1e6 <= elements <= 2e8


def gathered(moment: Any, **layout: Any) -> float:
    counts = count_parameters(shape_for_size(7e9))
    plan = Layout(**layout)
    return gathered_bytes(rank_parameters(counts, plan, 0), plan, recipe(plan, counts), moment)


def test_autocast_copies_stay_for_backward_only_without_checkpointing() -> None:
    counts = count_parameters(shape_for_size(7e9))
    products = 32 * counts.per_layer + counts.head
    assert gathered("forward") == pytest.approx(2 * products)
    assert gathered("start") == pytest.approx(2 * products)
    assert gathered("start", activation_checkpointing="full") == pytest.approx(2 * counts.per_layer)
    assert gathered("forward", precision="fp32") == 0


def test_fsdp2_gathers_one_layer_in_forward_and_two_in_backward_beside_the_root() -> None:
    counts = count_parameters(shape_for_size(7e9))
    root, layer = counts.embedding + counts.head, counts.per_layer
    plan = {"engine": "fsdp2", "sharding": "parameters", "data_parallel_shard_degree": 8}
    assert gathered("forward", **plan) == pytest.approx(2 * (root + layer))
    assert gathered("start", **plan) == pytest.approx(2 * (root + 2 * layer))
    assert gathered("end", **plan) == pytest.approx(2 * (root + 2 * layer) + 4 * layer)


def test_fsdp2_in_a_pipeline_keeps_the_whole_stage_gathered() -> None:
    counts = count_parameters(shape_for_size(7e9))
    plan = {
        "engine": "fsdp2",
        "sharding": "parameters",
        "data_parallel_shard_degree": 8,
        "pipeline_parallel_degree": 4,
        "gradient_accumulation_steps": 8,
    }
    stage = counts.num_layers / 4 * counts.per_layer + counts.embedding  # the first: no head, no final norm
    assert gathered("forward", **plan) == pytest.approx(2 * stage)
    assert gathered("start", **plan) == pytest.approx(2 * stage)
    assert gathered("end", **plan) == pytest.approx(2 * (stage + counts.per_layer))


def test_fsdp2_in_a_pipeline_has_whole_fp32_gradients_until_the_step() -> None:
    shape = shape_for_size(7e9)
    counts = count_parameters(shape)
    plan = Layout(
        engine="fsdp2",
        sharding="parameters",
        data_parallel_shard_degree=8,
        pipeline_parallel_degree=4,
        gradient_accumulation_steps=8,
        micro_batch_size=1,
        sequence_length=512,
    )
    kinds, local = recipe(plan, counts), rank_parameters(counts, plan, 0)
    states = held(counts, local, plan, kinds, server_share=1.0)
    found = moments(shape, plan, counts, kinds, local, states, 0)
    whole = 4 * (counts.num_layers / 4 * counts.per_layer + counts.embedding)
    assert found["backward start"][0] == pytest.approx(whole)
    assert found["backward end"][0] == pytest.approx(whole)
    assert found["optimizer"][0] == pytest.approx(whole / 8)


def test_more_kinds_of_process_groups_take_more_context() -> None:
    alone = context_bytes(Layout(), "cuda")
    replicated = context_bytes(Layout(engine="ddp", data_parallel_replicate_degree=8), "cuda")
    hybrid = context_bytes(
        Layout(engine="fsdp2", data_parallel_replicate_degree=8, data_parallel_shard_degree=8), "cuda"
    )
    assert alone < replicated < hybrid
