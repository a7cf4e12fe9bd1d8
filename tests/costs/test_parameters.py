from __future__ import annotations

import pytest

from stratadvisor.catalog import models
from stratadvisor.costs.parameters import adapter_parameters, count_parameters, rank_parameters
from stratadvisor.schema.layout import Layout
from stratadvisor.schema.workload import ModelShape


def known(name: str) -> ModelShape:
    shape = models.lookup(name)
    assert shape is not None
    return shape


@pytest.mark.parametrize("name", models.names())
def test_the_parts_add_up_to_the_whole(name: str) -> None:
    shape = known(name)
    counts = count_parameters(shape)
    parts = counts.embedding + counts.head + counts.num_layers * counts.per_layer
    assert parts == pytest.approx(shape.num_parameters, rel=1e-9)
    assert 0 <= counts.experts_per_layer <= counts.per_layer
    assert 0 <= counts.adapted_per_layer <= counts.per_layer


def test_a_llama_layer_has_four_projections_three_mlp_matrices_and_a_share_of_the_norms() -> None:
    counts = count_parameters(known("llama-2-7b"))
    matrices = 4 * 4096**2 + 3 * 4096 * 11008
    norms = (2 * 32 + 1) * 4096 / 32
    assert counts.per_layer == matrices + norms
    assert counts.adapted_per_layer == matrices
    assert counts.embedding == counts.head == 32000 * 4096


def test_lora_on_all_seven_matrices() -> None:
    # rank * (inputs + outputs) of q, k, v, o, gate, up, down
    edges = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    assert adapter_parameters(count_parameters(known("llama-2-7b")), 8) == 8 * 32 * edges


def test_a_counted_module_is_one_unit() -> None:
    shape = ModelShape(name="m", family="module", num_parameters=1000, num_active_parameters=1000)
    assert count_parameters(shape).embedding == 1000
    assert count_parameters(shape).num_layers == 0


def test_tensor_and_pipeline_parallel_ranks_hold_everything_once_when_untied() -> None:
    shape = known("llama-2-7b")
    counts = count_parameters(shape)
    layout = Layout(engine="megatron", tensor_parallel_degree=4, pipeline_parallel_degree=8)
    stages = [rank_parameters(counts, layout, stage) for stage in range(8)]
    assert 4 * sum(stage.total for stage in stages) == pytest.approx(shape.num_parameters)


def test_a_tied_matrix_lies_on_the_first_and_the_last_stage() -> None:
    shape = known("gpt2")
    counts = count_parameters(shape)
    layout = Layout(engine="megatron", pipeline_parallel_degree=2)
    both = rank_parameters(counts, layout, 0).total + rank_parameters(counts, layout, 1).total
    assert both == pytest.approx(shape.num_parameters + counts.embedding)
