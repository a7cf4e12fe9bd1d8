from __future__ import annotations

from pathlib import Path

import pytest

from stratadvisor.errors import ModelError
from stratadvisor.models_meta.count import count_module

MODULES = """
import torch
from torch import nn

print("user code may print")

def factory():
    return nn.Linear(64, 10), torch.zeros(4, 64)

def failing():
    raise RuntimeError("no weights here")
"""


@pytest.fixture(autouse=True)
def user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_models.py").write_text(MODULES, encoding="utf-8")
    (tmp_path / "dying_models.py").write_text("import os\nos._exit(3)\n", encoding="utf-8")
    (tmp_path / "sleepy_models.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.process
def test_a_module_is_counted_in_another_process() -> None:
    shape = count_module("user_models:factory")
    assert shape.family == "module"
    assert shape.factory == shape.name == "user_models:factory"
    assert shape.num_parameters == 64 * 10 + 10
    assert shape.flops_per_item == 2 * 64 * 10
    assert shape.saved_bytes_per_item == 4 * 64


@pytest.mark.process
@pytest.mark.parametrize(
    ("target", "word"), [("user_models:failing", "no weights here"), ("dying_models:f", "ended with code 3")]
)
def test_what_is_wrong_is_said_in_one_sentence(target: str, word: str) -> None:
    with pytest.raises(ModelError, match=word) as caught:
        count_module(target)
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.process
def test_a_module_that_hangs_is_given_up() -> None:
    with pytest.raises(ModelError, match="within 1 s"):
        count_module("sleepy_models:f", timeout_seconds=1)


@pytest.mark.parametrize("target", ["", "torch.nn", "a:b:c", "os;rm:x", "../x:y", ":f", "m:", "m:f()", "m:a.b"])
def test_a_target_of_another_form_is_refused_before_anything_runs(target: str) -> None:
    with pytest.raises(ModelError, match="not of the form"):
        count_module(target)
