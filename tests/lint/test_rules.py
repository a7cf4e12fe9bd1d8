"""Every code: found in the bad example, not in the good one."""

from __future__ import annotations

import pytest
from lint_examples import CASES, EXAMPLES, config, written

from stratadvisor.lint.codes import CODES
from stratadvisor.lint.known import KINDS, changes
from stratadvisor.lint.run import check_file

ELSEWHERE = {"GEN101"} | {code for code in CODES if code.startswith(("HW", "MEM"))}
"""Codes whose examples are texts or need hardware: test_reader.py, test_hardware.py, test_memory.py."""


def checked(folder, example, which):
    return check_file(written(folder, config(example, which), example.kind), kind=example.kind, **example.options)


@pytest.mark.parametrize(("code", "example"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_bad_one_is_found_and_the_good_one_is_not(code, example, tmp_path):
    bad = checked(tmp_path, example, "bad")
    found = [f for f in bad.findings if f.code == code]
    assert found, bad.findings
    good = checked(tmp_path, example, "good")
    assert code not in {f.code for f in good.findings}
    assert [f for f in good.findings if f.severity == "error"] == []
    for finding in found:
        assert finding.source
        assert finding.fix or finding.severity == "note"
        assert finding.line is not None or not finding.path or finding.path.startswith("<")


@pytest.mark.parametrize(("code", "example"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_called_an_error_is_what_the_judge_refuses(code, example, tmp_path):
    errors = checked(tmp_path, example, "bad").count("error")
    if example.judge in ("parser", "engine"):
        assert errors
    if example.judge == "accepts" and code != "DS213":
        assert not errors


def test_in_a_file_for_several_argument_classes_only_likely_typos_are_told(tmp_path):
    data = {"model_name_or_path": "m", "output_dir": "o", "lora_r": 8, "torch_dtype": "x", "learning_ratee": 1}
    findings = check_file(written(tmp_path, data, "transformers")).findings
    assert [(f.code, f.severity, f.path) for f in findings] == [("HF101", "warning", "learning_ratee")]


def test_remarks_are_no_keys(tmp_path):
    data = {"_comment": "why", "//": "x", "train_batch_size": 8, "gradient_clipping": 1.0, "zero_optimization": {}}
    assert check_file(written(tmp_path, data, "deepspeed")).findings == ()


def test_every_code_has_an_example():
    assert set(EXAMPLES) | ELSEWHERE == set(CODES)


def test_no_key_is_both_changed_and_known():
    from stratadvisor.lint.known import known

    for kind in KINDS:
        for path, change in changes(kind).items():
            section, _, key = path.rpartition(".")
            if change.what == "deprecated":
                continue
            assert key not in known(kind).sections.get(section, frozenset()), path


def test_every_key_that_deepspeed_says_it_removed_is_in_the_table():
    import json
    from importlib.resources import files

    removed = json.loads((files("stratadvisor.lint") / "data" / "deepspeed.json").read_text())["removed"]
    assert removed
    for path in removed:
        change = changes("deepspeed")[path]
        assert (change.what, change.error) == ("removed", True), path
