"""Whose file it is, from its keys."""

from __future__ import annotations

import pytest
from lint_examples import BASE, CASES, config

from stratadvisor.errors import UsageError
from stratadvisor.lint.detect import detect


@pytest.mark.parametrize("kind", BASE)
def test_the_right_configuration_of_each_kind_is_recognised(kind):
    assert detect(BASE[kind], "file") == kind


def test_every_example_is_recognised():
    wrong = {
        f"{name} {which}": detect(config(example, which), name)
        for name, _, example in CASES
        for which in ("bad", "good")
        if detect(config(example, which), name) != example.kind
    }
    assert wrong == {}


def test_a_lightning_cli_file_is_recognised_with_and_without_a_subcommand():
    assert detect({"seed_everything": 1, "trainer": {}, "model": {}}, "f") == "lightning"
    assert detect({"fit": {"trainer": {"devices": 2}}}, "f") == "lightning"


def test_nothing_known_asks_for_the_kind():
    with pytest.raises(UsageError, match="has no key") as problem:
        detect({"lr": 1}, "x.yaml")
    assert "--kind" in problem.value.hint
