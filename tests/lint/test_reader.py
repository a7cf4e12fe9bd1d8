"""Files from anywhere: one sentence for what cannot be read, the right line for what can."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.errors import UsageError
from stratadvisor.lint.json_lines import places
from stratadvisor.lint.reader import MAX_BYTES, read_config
from stratadvisor.lint.run import check_file
from stratadvisor.lint.yaml_lines import MAX_NODES, YamlProblemError, read_yaml

JSON = """{
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {
    "stage": 2, "offload_optimizer": {
      "device": "cpu"
    }
  },
  "list": [1,
    2, {"inner": 3}]
}"""


def test_json_keys_have_their_lines():
    lines = places(JSON).lines
    assert lines["train_micro_batch_size_per_gpu",] == 2
    assert lines["zero_optimization", "stage"] == 4
    assert lines["zero_optimization", "offload_optimizer", "device"] == 5
    assert lines["list", 0] == 8
    assert lines["list", 2, "inner"] == 9


def test_yaml_keys_have_their_lines():
    data, found = read_yaml("a: 1\nb:\n  c: [1, 2]\n  d:\n    - x: 5\n")
    assert data == {"a": 1, "b": {"c": [1, 2], "d": [{"x": 5}]}}
    assert [found.lines[path] for path in (("a",), ("b", "c"), ("b", "d", 0, "x"))] == [1, 3, 5]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def paths_of(value, path=()):
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from paths_of(inner, (*path, key))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_every_key_of_any_json_has_a_line_that_holds_it(value, indent):
    text = json.dumps({"top": value}, indent=indent)
    found = places(text)
    rows = text.split("\n")
    expected = set(paths_of({"top": value}))
    assert expected <= set(found.lines)
    assert found.twice == []
    for path in expected:
        if isinstance(path[-1], str):
            assert json.dumps(path[-1]) in rows[found.lines[path] - 1]


def test_keys_that_stand_twice_are_found_in_both_formats(tmp_path):
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 1,\n "stage": 2}}')
    (finding,) = [f for f in check_file(file).findings if f.code == "GEN101"]
    assert (finding.path, finding.line, finding.severity) == ("zero_optimization.stage", 3, "error")
    assert "line 2" in finding.message
    file = tmp_path / "args.yaml"
    file.write_text("output_dir: a\nlearning_rate: 1.0e-4\noutput_dir: b\n")
    (finding,) = [f for f in check_file(file).findings if f.code == "GEN101"]
    assert (finding.path, finding.line, finding.severity) == ("output_dir", 3, "warning")


def bomb(levels: int, width: int) -> str:
    first = "a0: &a0 [x, x, x, x, x, x, x, x, x]"
    more = (f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels))
    return "\n".join((first, *more))


def merge_bomb(levels: int, width: int) -> str:
    more = (f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels))
    return "\n".join(("a0: &a0 {k: 1}", *more))


@pytest.mark.parametrize("text", [bomb(9, 9), merge_bomb(9, 9)], ids=["aliases", "merges"])
def test_aliases_that_grow_without_bound_are_refused(text):
    with pytest.raises(YamlProblemError, match=str(MAX_NODES)):
        read_yaml(text)


def test_aliases_and_merges_of_ordinary_files_work():
    data, _ = read_yaml("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\ntwo: [*b, *b]\n")
    assert data["mine"] == {"x": 1, "y": 3}
    assert data["two"] == [{"x": 1, "y": 2}] * 2


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "", "not JSON"),
        ("a.json", "{", "line 1"),
        ("a.json", "[1]", "list"),
        ("a.json", "{'a': 1}", "not JSON"),
        ("a.json", '{"a": 1} // why', "not JSON"),
        ("a.json", '{"a":' * 70 + "1" + "}" * 70, "64 levels"),
        ("a.json", "[" * 100_000, "not usable JSON"),
        ("a.json", '{"a": 1e999999, "b": ' + "9" * 5000 + "}", ""),
        ("a.yaml", "", "nothing"),
        ("a.yaml", "just words", "str"),
        ("a.yaml", "a: [1", "line"),
        ("a.yaml", "a: !!python/object/apply:os.system ['true']", "line 1"),
        ("a.yaml", "a: !thing 1", "line 1"),
        ("a.yaml", "a: 1\n---\nb: 2\n", "line"),
        ("a.yaml", "? [1, 2]\n: 3\n", "line"),
        ("a.yaml", "a: &x [*x]", "deeper"),
        ("a.yaml", "{" * 500, "a.yaml"),
        ("a.yaml", "a: \x00", "YAML"),
        ("a.yaml", "<<: 5", "merges"),
        ("a.yaml", "\t\ta: 1", "line 1"),
        ("a.yaml", "nothing_known: 1", "--kind"),
        ("a.json", '{"name": "x"}', "has no key"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name, content, words, tmp_path):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(UsageError) as problem:
        check_file(file)
    said = problem.value.message + problem.value.hint
    assert words in said
    assert "\n" not in problem.value.message
    assert len(problem.value.message) < 400


def test_a_file_that_is_too_large_missing_or_no_text_is_one_sentence(tmp_path):
    large = tmp_path / "large.json"
    large.write_text(" " * (MAX_BYTES + 1))
    other = tmp_path / "other.json"
    other.write_bytes(b"\xff\xfe{}")
    for path in (large, other, tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match=path.name):
            read_config(path)


KEYS = [
    "zero_optimization",
    "fp16",
    "bf16",
    "optimizer",
    "scheduler",
    "train_batch_size",
    "pipeline",
    "aio",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "deepspeed",
    "fsdp",
    "fsdp_config",
    "optim",
    "trainer",
    "strategy",
    "precision",
    "devices",
    "accelerator",
    "distributed_type",
    "num_processes",
    "num_machines",
    "deepspeed_config",
    "parallelism_config",
    "mixed_precision",
    "learning_rate",
    "gpu_ids",
    "eval_strategy",
    "activation_checkpointing",
    "data_types",
    "gradient_clipping",
    "machine_rank",
    "zenflow",
    "stage",
    "enabled",
    "type",
    "params",
    "device",
    "ratio",
    "offload_optimizer",
    "offload_param",
    "class_path",
    "init_args",
    "config",
    "stages",
    "loss_scale",
    "fsdp_version",
    "zero_stage",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["auto", "ddp", "fsdp", "x", "NO"])
TREES = st.dictionaries(
    st.sampled_from(KEYS),
    st.recursive(
        LEAVES,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=8,
    ),
    max_size=8,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TREES, st.sampled_from(["deepspeed", "accelerate", "lightning", "transformers"]), st.sampled_from([None, 1, 6]))
def test_no_value_of_any_key_breaks_a_rule(tmp_path_factory, tree, kind, world):
    file = tmp_path_factory.mktemp("any") / "a.json"
    file.write_text(json.dumps(tree))
    for finding in check_file(file, kind=kind, world_size=world).findings:
        assert finding.message
        assert "\n" not in finding.message


WORDS = "output_dir stage - &a *a << { } [ ] , ' \" | > !!int !x ? --- ... # 1e-5 0x1F 1:30 2024-13-01 yes ~ .inf NO ="
PIECES = st.sampled_from([*WORDS.split(), ": ", ":\n  ", "\n", "- ", " ", "\t", "%", "<<: "])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join), st.sampled_from(["json", "yaml"]))
def test_any_text_is_checked_or_refused_with_one_sentence(tmp_path_factory, text, ending):
    file = tmp_path_factory.mktemp("text") / f"a.{ending}"
    file.write_text(text, encoding="utf-8", errors="replace")
    for kind in (None, "accelerate"):
        try:
            check_file(file, kind=kind)
        except UsageError as problem:
            assert "\n" not in problem.message.replace(str(file), "")
