"""Bad input at the command line: one sentence, a documented exit code, nothing written, no traceback."""

from __future__ import annotations

import json

import pytest

from stratadvisor.cli import run

GPUS = ["--gpus", "8xA100-80GB"]
SIZE = ["--model-size", "1B"]


def told(arguments, capsys) -> tuple[int, str]:
    code = run([str(a) for a in arguments])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return code, err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["recommend", *SIZE, "--model", "llama-3-8b", *GPUS], 2, "either"),
        (["recommend", "--model-size", "7", *GPUS], 12, ""),
        (["recommend", "--model-size", "seven", *GPUS], 2, "write for example"),
        (["recommend", "--model-size", "0B", *GPUS], 12, ""),
        (["recommend", "--model-size", "9e99B", *GPUS], 12, ""),
        (["recommend", *SIZE, "--gpus", "8xNothing"], 2, "Nothing"),
        (["recommend", *SIZE, "--gpus", "A100"], 2, "COUNTxTYPE"),
        (["recommend", *SIZE, "--gpus", "2x8xA100-80GB", "--inter-node", "200"], 2, "no unit"),
        (["recommend", *SIZE, "--inter-node", "200Gb/s"], 2, "--gpus"),
        (["recommend", *SIZE, *GPUS, "--method", "full-ish"], 2, "full, lora, qlora"),
        (["recommend", *SIZE, *GPUS, "--optimizer", "adam"], 2, "adamw"),
        (["recommend", *SIZE, *GPUS, "--precision", "fp4"], 2, "bf16"),
        (["recommend", *SIZE, *GPUS, "--objective", "cost"], 2, "--price-per-device-hour"),
        (["recommend", *SIZE, *GPUS, "--total-tokens", "-1"], 2, "--total-tokens"),
        (["recommend", *SIZE, *GPUS, "--global-batch-tokens", "1"], 2, "--global-batch-tokens"),
        (["recommend", *SIZE, *GPUS, "--overlay", "does-not-exist"], 2, "does-not-exist"),
        (["recommend", "--model", "lama-3-8b", *GPUS], 12, "lama-3-8b"),
        (["recommend", "--model", "no/such/config.json", *GPUS], 12, "config.json"),
        (["recommend", "--no-such-flag"], 2, "no-such-flag"),
        (["recommend", *SIZE, "--seq-len", "many"], 2, "seq-len"),
        (["run-config", "does-not-exist"], 2, "does-not-exist"),
        (["run-config", "--steps", "0"], 2, "steps"),
        (["explain", "does-not-exist"], 2, "does-not-exist"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_wrong_options_give_a_sentence_and_a_code(arguments, code, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    got, err = told(arguments, capsys)
    assert (got, words.lower() in err.lower()) == (code, True), err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\x00\x01", b'{"nodes": 3}', b'{"schema_version": 1000, "nodes": []}', b"[" * 50_000],
)
def test_a_garbage_profile_is_exit_code_4(content, capsys, tmp_path):
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    code, err = told(["recommend", *SIZE, "--cluster", path, "--output", tmp_path / "b"], capsys)
    assert code == 4
    assert str(path) in err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("content", ["", "[[node]]\n", "x = ", '[[node]]\ngpus = "8xA100-80GB"\nbogus = 1\n'])
def test_a_garbage_cluster_file_is_exit_code_4(content, capsys, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(content)
    code, err = told(["recommend", *SIZE, "--cluster", path, "--output", tmp_path / "b"], capsys)
    assert code == 4
    assert str(path) in err


@pytest.mark.parametrize(
    "config",
    [
        "not json",
        "[]",
        "{}",
        json.dumps({"model_type": "llama"}),
        json.dumps({"model_type": "llama", "hidden_size": -4, "num_hidden_layers": 2}),
        json.dumps({"model_type": "llama", "hidden_size": "wide"}),
        json.dumps({"model_type": "unheard-of", "hidden_size": 64}),
    ],
)
def test_a_garbage_model_config_is_exit_code_12(config, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(config)
    code, err = told(["recommend", "--model", path, *GPUS, "--output", tmp_path / "b"], capsys)
    assert code == 12, err
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "rule",
    [
        "x = [",
        "schema_version = 1\n",
        'schema_version = 1\n[question]\nid = "q"\nask = "?"\n[[branch]]\nid = "US1"\nwhen = "sometimes"\n',
    ],
)
def test_a_garbage_rule_overlay_is_exit_code_5(rule, capsys, tmp_path):
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "90_mine.toml").write_text(rule)
    code, err = told(["recommend", *SIZE, *GPUS, "--overlay", tmp_path, "--output", tmp_path / "b"], capsys)
    assert code == 5, err
    assert "90_mine.toml" in err
    assert not (tmp_path / "b").exists()


def test_a_template_overlay_that_reads_what_is_not_there_is_exit_code_7(capsys, tmp_path):
    folder = tmp_path / "templates" / "torchrun"
    folder.mkdir(parents=True)
    (folder / "launch.sh.j2").write_text("{{ plan.no_such_field }}\n")
    code, err = told(["recommend", *SIZE, *GPUS, "--overlay", tmp_path, "--output", tmp_path / "b"], capsys)
    assert code == 7, err
    assert "launch.sh.j2" in err
    assert not (tmp_path / "b").exists()


def test_names_with_terminal_codes_reach_no_terminal(capsys, tmp_path):
    hostile = "\x1b]0;owned\x07card"
    profile = {"nodes": [{"hostname": hostile, "devices": [{"index": 0, "kind": "cuda", "name": hostile}]}]}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(profile))
    run(["recommend", *SIZE, "--cluster", str(path), "--no-write"])
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "\x07" not in captured.out + captured.err


def test_an_output_folder_that_cannot_be_made_is_said(capsys, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    code, err = told(["recommend", *SIZE, *GPUS, "--output", blocker / "bundle"], capsys)
    assert code in (1, 7)
    assert str(blocker) in err


def test_an_infeasible_request_is_exit_code_6_with_the_number_that_kills_it(capsys, tmp_path):
    cluster = tmp_path / "small.toml"
    cluster.write_text('[[node]]\ngpus = "1xT4"\nhost_memory = "64GiB"\n')
    arguments = ["recommend", "--model-size", "70B", "--cluster", cluster, "--output", tmp_path / "b"]
    code, err = told(arguments, capsys)
    assert code == 6
    assert "GiB" in err
    assert not (tmp_path / "b").exists()


def test_version_and_help_are_exit_code_0(capsys):
    assert run(["--version"]) == 0
    assert "stratadvisor" in capsys.readouterr().out
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("probe", "recommend", "run-config", "explain", "rules"))


@pytest.mark.parametrize("name", ["probe", "recommend", "run-config", "explain", "rules"])
def test_every_command_has_help_with_an_example(name, capsys):
    assert run([name, "--help"]) == 0
    assert "xample" in capsys.readouterr().out
