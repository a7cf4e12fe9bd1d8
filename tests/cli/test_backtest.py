"""``stratadvisor backtest`` at the command line: tables, files, JSON, bad input."""

from __future__ import annotations

import json

import pytest
from published_runs import as_csv

from stratadvisor.cli import run


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(as_csv(), encoding="utf-8")
    return path


def test_it_prints_errors_per_group_and_what_it_could_not_predict(runs, capsys):
    assert run(["backtest", str(runs), "--by", "strategy"]) == 0
    told = capsys.readouterr().out
    assert "Step time" in told
    assert "Peak memory" in told
    assert "fsdp" in told
    assert "precision nvfp4 is not modelled" in told
    assert max(map(len, told.splitlines())) <= 80


def test_json_holds_the_same_tables(runs, capsys):
    assert run(["backtest", str(runs), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by"] == ["gpu", "strategy"]
    assert told["time"][-1]["group"] == "all"
    assert told["time"][-1]["count"] == 3
    assert told["skipped"] == [["precision nvfp4 is not modelled", 1]]


def test_it_writes_predictions_and_a_plot_and_keeps_what_exists(runs, tmp_path, capsys):
    output, plot = tmp_path / "errors.csv", tmp_path / "errors.svg"
    assert run(["backtest", str(runs), "-o", str(output), "--plot", str(plot)]) == 0
    assert output.read_text(encoding="utf-8").startswith("line,id,source")
    assert plot.read_text(encoding="utf-8").startswith("<svg")
    before = output.read_bytes()
    assert run(["backtest", str(runs), "-o", str(output)]) == 2
    assert run(["backtest", str(runs), "-o", str(runs), "--force"]) == 2
    assert runs.read_text(encoding="utf-8") == as_csv().replace("\r\n", "\n")
    assert run(["backtest", str(runs), "-o", str(output), "--force"]) == 0
    assert output.read_bytes() == before  # same input, same bytes
    assert run(["backtest", str(runs), "--plot", str(tmp_path / "errors.gif")]) == 2
    assert "SVG" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff\xfe\x00", b'a,"b\nc,d\n', b"gpu_model,n_gpus\nA100,8\n"])
def test_a_file_of_something_else_is_one_sentence(content, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert run(["backtest", str(path)]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert str(path) in told.splitlines()[0]


def test_a_column_that_does_not_exist_is_one_sentence(runs, capsys):
    assert run(["backtest", str(runs), "--by", "speed"]) == 2
    assert "'speed'" in capsys.readouterr().err
