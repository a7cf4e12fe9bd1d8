"""``recommend --from``: the file's batch, precision and optimizer are taken over, and what changes is shown."""

from __future__ import annotations

import json

import pytest

from stratadvisor.cli import run
from stratadvisor.lint.start import changed_keys, starting_point

FILE = {
    "train_batch_size": 256,
    "gradient_accumulation_steps": 8,
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}
HARDWARE = ["--gpus", "2x8xA100-80GB", "--inter-node", "200Gb/s", "--model-size", "1B"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(FILE))
    return path


def test_batch_and_precision_come_from_the_file(file, capsys, tmp_path):
    out = str(tmp_path / "b")
    assert run(["recommend", "--from", str(file), *HARDWARE, "--output", out, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["batch"]["global_batch_size"] == 256
    assert plan["precision"] == "fp16"


def test_an_option_is_stronger_than_the_file(file, capsys, tmp_path):
    options = ["--global-batch-size", "64", "--precision", "bf16", "--no-write", "--json"]
    assert run(["recommend", "--from", str(file), *HARDWARE, *options]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["batch"]["global_batch_size"], plan["precision"]) == (64, "bf16")


def test_the_screen_shows_settings_and_keys_that_change(file, capsys):
    assert run(["recommend", "--from", str(file), *HARDWARE, "--strategy", "zero2", "--no-write"]) == 0
    out = capsys.readouterr().out
    after = out[out.index("against") :]
    assert "* optimizer offload" in after
    assert "- zero_optimization.stage = 3" in after
    assert "+ zero_optimization.stage = 2" in after
    assert "- zero_optimization.offload_optimizer.device" in after
    assert "gradient_clipping" not in after  # it is the same in both


def test_the_batch_of_trainer_arguments_counts_all_devices(tmp_path):
    path = tmp_path / "args.json"
    path.write_text(json.dumps({"output_dir": "o", "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}))
    start = starting_point(path, num_devices=16)
    assert (start.kind, start.global_batch_size, start.precision) == ("transformers", 2 * 4 * 16, "fp32")


def test_a_file_against_itself_has_no_changed_key(file):
    start = starting_point(file, num_devices=16)
    assert changed_keys(start, json.dumps(FILE)) == ()
    assert changed_keys(start, json.dumps({**FILE, "gradient_clipping": True})) == (
        "- gradient_clipping = 1.0",
        "+ gradient_clipping = true",
    )


def test_errors_of_the_file_are_told(file, capsys, tmp_path):
    file.write_text(json.dumps({**FILE, "elasticity": {}}))
    assert run(["recommend", "--from", str(file), *HARDWARE, "--no-write"]) == 0
    assert "stratadvisor check" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path, capsys):
    for content in ("{", '{"name": 1}'):
        bad = tmp_path / "x.json"
        bad.write_text(content)
        assert run(["recommend", "--from", str(bad), *HARDWARE, "--no-write"]) == 2
        assert "Traceback" not in capsys.readouterr().err
