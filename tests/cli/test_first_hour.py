"""What somebody types in the first hour: nothing, half of it, or a near miss."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from stratadvisor.cli import run

GPUS = ["--gpus", "2x8xA100-80GB", "--inter-node", "200Gb/s"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def words(capsys) -> tuple[str, str]:
    captured = capsys.readouterr()
    return " ".join(captured.out.split()), " ".join(captured.err.split())


@pytest.mark.parametrize("arguments", [[], ["rules"]])
def test_a_command_alone_prints_its_help_on_several_lines(arguments, capsys):
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "Commands:" in out.splitlines()
    assert all(len(line) <= 80 for line in out.splitlines())


def test_a_missing_argument_is_answered_with_an_example(capsys):
    assert run(["compare"]) == 2
    assert "Example: stratadvisor compare" in words(capsys)[1]


def test_a_cluster_alone_is_enough(capsys):
    assert run(["recommend", "--gpus", "1xT4", "--no-write"]) == 0
    out, err = words(capsys)
    assert "--model-size" in err
    assert "1 x 1 T4" in out


def test_the_profile_that_probe_left_here_is_used_and_named(tmp_path, capsys):
    assert run(["recommend", "--model-size", "1B", "--gpus", "4xRTX4090", "--output", "first", "--json"]) == 0
    (tmp_path / "first" / "cluster.json").rename(tmp_path / "cluster.json")
    capsys.readouterr()
    assert run(["recommend", "--model-size", "1B", "--output", "second"]) == 0
    out, err = words(capsys)
    assert "using cluster.json of this folder" in err
    assert "1 x 4 RTX4090" in out
    marker = tmp_path / "second" / ".cluster-source"
    assert marker.read_text().strip() == str(tmp_path / "cluster.json")  # a calibration reaches it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[nodes]]\ngpus = "8xT4"\n', "no key 'nodes'; did you mean 'node'?"),
        ('[[node]]\ngpu = "8xT4"\n', "no key 'gpu' in node 1; did you mean 'gpus'?"),
        ('[[node]]\ngpus = "8xT4"\n[node.device]\nmem = "16GiB"\n', "no key 'mem' in node 1; did you mean"),
        ('[network]\nrate = "1Gb/s"\n[[node]]\ngpus = "8xT4"\n', "no key 'network'; known here: name,"),
    ],
)
def test_a_key_misspelt_in_a_cluster_file_is_named_with_its_neighbour(text, said, tmp_path, capsys):
    (tmp_path / "c.toml").write_text(text)
    assert run(["recommend", "--model-size", "1B", "--cluster", "c.toml"]) == 4
    assert said in words(capsys)[1]


def test_a_device_without_its_memory_size_is_offered_with_both(capsys):
    assert run(["recommend", "--model-size", "1B", "--gpus", "8xA100"]) == 2
    err = words(capsys)[1]
    assert "A100-40GB" in err
    assert "A100-80GB" in err


@pytest.mark.parametrize("output", ["missing/c.json", "."])
def test_probe_refuses_an_impossible_output_before_it_measures(output, capsys):
    assert run(["probe", "--output", output]) == 2
    assert "%" not in capsys.readouterr().err  # no step of progress was printed


def test_commands_to_copy_stand_on_one_line(tmp_path, capsys):
    name = "a-rather-long-folder-name-for-a-bundle-of-files-to-train-with"
    assert run(["recommend", "--model-size", "1B", "--gpus", "4xRTX4090", "--output", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"  check      stratadvisor run-config {name}" in lines
    assert f"  start      bash {name}/launch.sh" in lines


def test_why_not_names_the_candidates(capsys):
    assert (
        run(["recommend", "--model-size", "1B", "--gpus", "1xT4", "--method", "lora", "--output", "b", "--json"]) == 0
    )
    assert run(["explain", "b", "--why-not", "zero3"]) == 2
    assert "candidates were single" in words(capsys)[1]


def test_vs_prints_a_table_and_leaves_a_comparison_that_report_draws(tmp_path, capsys):
    vs = ["--vs", "8xH100-80GB", "--vs", "1xT4", "--price", "2", "--price", "4", "--price", "0.5"]
    assert run(["recommend", "--model-size", "7B", *GPUS, *vs, "--output", "b"]) == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("90 % range") :]
    assert all(len(line) <= 80 for line in table.splitlines())
    for name in ("2x8xA100-80GB:", "8xH100-80GB:", "1xT4:", "+ 1 node", "network x 2", "memory x 2"):
        assert name in table
    found = json.loads((tmp_path / "b" / "comparison.json").read_text())["clusters"]
    own, other = found[0]["plan"]["predicted"], found[1]["plan"]["predicted"]
    assert own["cost"]["likely"] == pytest.approx(16 * own["run_seconds"]["likely"] / 3600 * 2)
    assert other["cost"]["likely"] == pytest.approx(8 * other["run_seconds"]["likely"] / 3600 * 4)
    assert f"{other['run_seconds']['likely'] / own['run_seconds']['likely']:.2f}" in table
    assert [c["what_if"] for c in found] == [False, False, False, True, True, True]
    assert run(["report", "b", "--json"]) == 0
    figures = {f["figure"]: f for f in json.loads(capsys.readouterr().out)}
    assert [row[0] for row in figures["clusters"]["rows"]] == [c["name"] for c in found]
    assert [row[0] for row in figures["clusters-cost"]["rows"]] == [c["name"] for c in found if c["plan"]]
    assert run(["report", "b", "-o", "r.html"]) == 0
    assert 'id="clusters"' in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(("module", "named"), [("psutil", "pip install psutil"), ("yaml", "pip install pyyaml")])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(module, named, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)  # what an import then raises is ModuleNotFoundError

    def fail() -> None:
        __import__(module)

    monkeypatch.setattr("stratadvisor.cli.app.command", lambda: SimpleNamespace(main=lambda **_: fail()))
    assert run(["recommend"]) == 1
    err = words(capsys)[1]
    assert named in err
    assert "fault of stratadvisor" not in err


def test_on_a_narrow_terminal_nothing_is_wider_than_it(capsys, monkeypatch):
    monkeypatch.setattr("stratadvisor.report.console.PIPED_WIDTH", 50)
    assert run(["recommend", "--model-size", "1B", *GPUS, "--vs", "8xT4", "--price", "2", "--no-write"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 50
    assert any("cost" in line for line in lines)


def test_a_comparison_of_an_earlier_plan_is_not_shown_with_a_new_one(capsys):
    assert run(["recommend", "--model-size", "1B", *GPUS, "--vs", "8xT4", "--output", "b"]) == 0
    assert run(["recommend", "--model-size", "350M", *GPUS, "--output", "b"]) == 0
    capsys.readouterr()
    assert run(["report", "b", "--json"]) == 0
    assert "clusters" not in {f["figure"] for f in json.loads(capsys.readouterr().out)}


def test_compare_writes_a_document_of_the_published_schema(tmp_path, capsys):
    assert run(["compare", "--model-size", "1B", "4xT4", "8xT4", "-o", "c.json", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "c.json").read_text())
    assert run(["schema", "comparison"]) == 0
    assert set(json.loads(capsys.readouterr().out)["properties"]) == set(printed)
    assert run(["report", "c.json", "-o", "r.html"]) == 0


def test_a_cluster_to_compare_with_that_cannot_be_read_is_named(capsys):
    assert run(["recommend", "--model-size", "1B", *GPUS, "--no-write", "--vs", "8xA100@100Gb/s"]) == 2
    err = words(capsys)[1]
    assert "8xA100@100Gb/s: node 1: no device" in err
    assert "--gpus" not in err
    assert run(["compare", "--model-size", "1B", "4xT4", "-o", "missing/c.json"]) == 2


def test_prices_that_fit_no_number_of_clusters_are_refused(capsys):
    arguments = ["recommend", "--model-size", "1B", *GPUS, "--no-write", "--vs", "8xT4", "--vs", "4xT4"]
    assert run([*arguments, "--price", "1", "--price", "2"]) == 2
    assert "2 prices for 3 clusters" in words(capsys)[1]


def test_one_document_is_on_standard_output_with_json(capsys):
    assert run(["recommend", "--model-size", "1B", *GPUS, "--no-write", "--json", "--vs", "8xT4"]) == 0
    out = capsys.readouterr().out
    assert len(json.loads(out)["clusters"]) == 5


def test_seven_means_seven_billion(capsys):
    assert run(["recommend", "--model-size", "7", "--gpus", "8xA100-80GB", "--no-write"]) == 12
    assert "7B? sizes from 1M" in capsys.readouterr().err


def test_a_profile_in_the_place_of_a_plan_is_told(tmp_path, capsys):
    profile = tmp_path / "cluster.json"
    assert run(["recommend", "--model-size", "1B", "--gpus", "8xA100-80GB", "-o", str(tmp_path / "b")]) == 0
    (tmp_path / "b" / "cluster.json").rename(profile)
    capsys.readouterr()
    assert run(["explain", str(profile)]) == 2
    assert "is the profile of a cluster, not a plan" in capsys.readouterr().err


def test_the_answer_is_printed_where_the_files_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["recommend", "--model-size", "1B", "--gpus", "8xA100-80GB", "-o", str(tmp_path / "file" / "bundle")]
    code = run(arguments)
    seen = capsys.readouterr()
    assert code == 7
    assert "whole run" in seen.out
    assert str(tmp_path / "file") in seen.err
    assert run([*arguments, "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["strategy"]
