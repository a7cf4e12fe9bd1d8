"""Whose file it is, from its keys."""

from __future__ import annotations

import json

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


def test_documents_of_another_kind_are_not_mistaken_for_a_configuration(tmp_path):
    import plan_examples

    from stratadvisor.emit.bundle import render_bundle

    files = {f.path: f.content for f in render_bundle(plan_examples.examples()["zero3_gpu"], plan_examples.profile())}
    for name in ("plan.json", "train_config.json", "cluster.json"):
        with pytest.raises(UsageError, match=name) as problem:
            detect(json.loads(files[name]), name)
        assert "--kind" in problem.value.hint


def test_a_file_read_by_several_argument_classes_is_the_trainers():
    others = {f"my_argument_{n}": n for n in range(9)} | {"model_name_or_path": "x", "dataset_name": "y"}
    own = {"output_dir": "o", "learning_rate": 1e-4, "bf16": True, "per_device_train_batch_size": 1, "seed": 1}
    assert detect(others | own, "f") == "transformers"


@pytest.mark.parametrize(
    ("reader", "data"),
    [
        ("Axolotl", {"base_model": "x", "micro_batch_size": 1, "learning_rate": 1e-4, "bf16": True}),
        ("LLaMA-Factory", {"model_name_or_path": "x", "finetuning_type": "lora", "output_dir": "o", "bf16": True}),
    ],
)
def test_programs_with_a_format_of_their_own_are_named(reader, data):
    with pytest.raises(UsageError, match=reader):
        detect(data, "f.yaml")


def test_a_single_common_word_says_nothing():
    with pytest.raises(UsageError, match="too few keys"):
        detect({"project": "book", "format": "html"}, "f.yaml")


def test_nothing_known_asks_for_the_kind():
    with pytest.raises(UsageError, match="has no key") as problem:
        detect({"lr": 1}, "x.yaml")
    assert "--kind" in problem.value.hint
