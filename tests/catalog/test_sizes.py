from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.catalog.sizes import LARGEST, SMALLEST, shape_for_size
from stratadvisor.errors import ModelError


def test_seven_billion_is_thirty_two_layers_of_4096() -> None:
    shape = shape_for_size(7e9)
    assert (shape.num_layers, shape.hidden_size, shape.ffn_hidden_size) == (32, 4096, 11008)
    assert shape.name == "chosen for 7B"
    assert shape.num_parameters == 6_738_415_616  # LLaMA-7B


@given(st.floats(min_value=3e6, max_value=LARGEST))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_the_shape_is_within_five_percent_of_the_size_asked_for(size: float) -> None:
    shape = shape_for_size(size)
    assert abs(shape.num_parameters - size) <= 0.05 * size
    assert shape.hidden_size == shape.num_attention_heads * shape.head_dim
    assert shape.num_attention_heads % shape.num_key_value_heads == 0


def test_more_parameters_asked_for_never_give_fewer() -> None:
    counts = [shape_for_size(SMALLEST * 10 ** (i * 7.3 / 400)).num_parameters for i in range(401)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("size", [0, -7e9, 10, 1e15, float("inf"), float("nan")])
def test_absurd_sizes_are_refused(size: float) -> None:
    with pytest.raises(ModelError):
        shape_for_size(size)
