from __future__ import annotations

import re

import pytest

from stratadvisor.catalog import models


@pytest.mark.parametrize("name", models.names())
def test_every_row_makes_a_shape_with_a_source_and_the_published_count(name: str) -> None:
    shape = models.lookup(name)
    assert shape is not None
    assert shape.name == name
    assert re.match(r"https://(huggingface\.co|arxiv\.org)/\S", shape.source)
    published = models.published_parameters(name)
    if published is not None:
        assert shape.num_parameters == published


def test_the_catalog_has_dense_and_mixture_decoders_encoders_and_vision() -> None:
    shapes = [models.lookup(name) for name in models.names()]
    known = [s for s in shapes if s is not None]
    assert len(known) >= 60
    assert sum(1 for s in known if s.num_experts) >= 6
    assert sum(1 for s in known if s.family == "encoder" and s.vocab_size) >= 4
    assert sum(1 for s in known if s.vocab_size == 0) >= 2


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("LLAMA-3-8B", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("gpt2-small", "gpt2"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("microsoft/phi-1_5".replace("_", "."), "phi-1.5"),
    ],
)
def test_common_spellings_are_found(spelling: str, key: str) -> None:
    shape = models.lookup(spelling)
    assert shape is not None
    assert shape.name == key


@pytest.mark.parametrize("name", ["", "llama", "llama-2-8b", "gpt-5", "7B", "a" * 10_000])
def test_a_name_that_is_not_there_gives_none_not_a_neighbour(name: str) -> None:
    assert models.lookup(name) is None


def test_no_two_rows_claim_the_same_name() -> None:
    rows = models._rows()
    claimed = [models.normalised(n) for key, row in rows.items() for n in (key, *row.get("aliases", ()))]
    assert len(claimed) == len(set(claimed))


def test_one_token_of_mixtral_passes_two_of_eight_experts() -> None:
    shape = models.lookup("mixtral-8x7b")
    assert shape is not None
    expert = 3 * 4096 * 14336
    assert shape.num_parameters - shape.num_active_parameters == 32 * (8 - 2) * expert
