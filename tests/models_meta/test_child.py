from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stratadvisor.models_meta import child

MODULES = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

def batch_of_four():
    return mlp(), torch.zeros(4, 64)

def convolution():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), torch.zeros(2, 3, 16, 16)

class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, scale):
        return self.head(self.embedding(tokens) * scale)

def named_inputs():
    return TwoInputs(), {"tokens": torch.zeros(3, 5, dtype=torch.int64), "scale": torch.ones(1)}

class Picky(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        if float(x.sum()) > 1:  # needs values: not possible on the meta device
            return x
        return self.layer(x)

def picky():
    return Picky(), torch.zeros(1, 4)

def huge():
    return nn.Linear(200_000, 200_000), torch.zeros(1, 200_000)

def wrong():
    return 3

def failing():
    raise RuntimeError("no weights here")

def empty():
    return nn.ReLU()

class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5))

def bare():
    return Bare()

constant = 7
"""


@pytest.fixture(autouse=True)
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "in_process_models.py").write_text(MODULES, encoding="utf-8")
    (tmp_path / "broken_models.py").write_text("def f(:\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("in_process_models", None)


def count(name: str) -> dict[str, object]:
    return child.count(f"in_process_models:{name}")


def test_parameters_flops_and_saved_bytes_of_a_batch_are_per_item() -> None:
    found = count("batch_of_four")
    assert found["num_parameters"] == 64 * 128 + 128 + 128 * 10 + 10
    assert found["flops_per_item"] == 2 * (64 * 128 + 128 * 10)
    # fp32: the first layer's input and the activation's output, which is also the second layer's input
    assert found["saved_bytes_per_item"] == 4 * (64 + 128)


def test_convolutions_are_counted() -> None:
    found = count("convolution")
    assert found["num_parameters"] == 8 * 3 * 9 + 8
    assert found["flops_per_item"] == 2 * 8 * 3 * 9 * 16 * 16
    assert found["saved_bytes_per_item"] == 4 * (3 + 8) * 16 * 16


def test_a_usual_input_is_tried_and_named() -> None:
    found = count("mlp")
    assert found["flops_per_item"] == 2 * (64 * 128 + 128 * 10)
    assert "usual input of 1x64" in str(found["source"])


def test_tied_parameters_count_once_and_inputs_may_be_named() -> None:
    found = count("named_inputs")
    assert found["num_parameters"] == 50 * 16 + 50
    assert found["flops_per_item"] == 2 * 5 * 16 * 50


def test_a_module_that_needs_values_is_run_on_the_cpu() -> None:
    found = count("picky")
    assert found["flops_per_item"] == 2 * 4 * 4
    assert "cpu" in str(found["source"])


def test_a_module_of_160_gigabytes_is_counted_without_memory() -> None:
    assert count("huge")["num_parameters"] == 200_000**2 + 200_000


def test_a_module_whose_input_nobody_knows_has_its_parameters_counted() -> None:
    found = count("bare")
    assert found["num_parameters"] == 5
    assert found["flops_per_item"] is None
    assert "no example inputs" in str(found["source"])


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("in_process_models:wrong", "returned a int"),
        ("in_process_models:failing", "no weights here"),
        ("in_process_models:empty", "no parameters"),
        ("in_process_models:constant", "not callable"),
        ("in_process_models:missing", "no attribute 'missing'"),
        ("no_such_module_here:factory", "no_such_module_here"),
        ("broken_models:f", "SyntaxError"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(target: str, word: str) -> None:
    with pytest.raises(child.CountingError, match=word) as caught:
        child.count(target)
    assert "\n" not in str(caught.value)
