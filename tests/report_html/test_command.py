"""``stratadvisor report``: what it takes, what it writes, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from report_pages import Page, outcome, plan, profile

from stratadvisor import pipeline, store
from stratadvisor.cli import run
from stratadvisor.errors import UsageError
from stratadvisor.report_html.subject import read_subject

STEP = '{"event": "step", "step": 1, "loss": 2.0, "step_seconds": 0.1, "tokens": 64}\n'


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A bundle of two kinds of node, planned and written by the real commands."""
    out = tmp_path_factory.mktemp("bundle") / "b"
    gpus = ["--gpus", "2x8xA100-80GB,1x8xV100-32GB", "--inter-node", "100Gb/s"]
    assert run(["recommend", "--model-size", "7B", *gpus, "--output", str(out), "--json"]) == 0
    return out


def with_result(bundle: Path, where: Path, **changes: object) -> Path:
    import shutil

    shutil.copytree(bundle, where)
    first = outcome().results[0].model_copy(update=changes)
    folder = where / "validation"
    folder.mkdir()
    store.write_document(folder / pipeline.RESULT_NAME, outcome().model_copy(update={"results": (first,)}))
    (folder / "metrics.jsonl").write_text(STEP)
    return where


def report(*arguments: object) -> int:
    return run(["report", *(str(a) for a in arguments)])


def figures(path: Path) -> set[str]:
    return {e.attributes["id"] for e in Page(path.read_text(encoding="utf-8")).all("figure")}


def test_a_bundle_gives_plan_and_cluster_with_the_whole_flowchart(bundle, tmp_path, capsys):
    out = tmp_path / "r.html"
    assert report(bundle, "-o", out) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert figures(out) == {"memory", "step", "flowchart", "ranking", "map", "bandwidth", "roofline-0", "roofline-1"}
    read = Page(out.read_text(encoding="utf-8"))
    drawn = read.all("figure", id="flowchart")[0]
    assert "questions were asked of" in drawn.text  # the rules at hand are those of the plan
    assert "2 x 8xA100-80GB-SXM" in read.all("figure", id="map")[0].text


def test_a_bundle_that_ran_shows_the_run(bundle, tmp_path):
    out = tmp_path / "r.html"
    assert report(with_result(bundle, tmp_path / "b"), "-o", out) == 0
    assert figures(out) >= {"compared-0", "times", "loss"}


def test_the_steps_of_a_scaled_run_come_from_its_own_folder(bundle, tmp_path):
    folder = with_result(bundle, tmp_path / "b", proxy="1 device in place of 16")
    assert read_subject(folder).metrics is None
    (folder / "proxy" / "validation").mkdir(parents=True)
    (folder / "proxy" / "validation" / "metrics.jsonl").write_text(STEP.replace("2.0", "7.0"))
    found = read_subject(folder).metrics
    assert found is not None
    assert found.steps[0]["loss"] == 7.0


def test_a_run_that_was_cut_short_shows_its_steps_and_says_so(bundle, tmp_path):
    folder = with_result(bundle, tmp_path / "b")
    (folder / "validation" / pipeline.RESULT_NAME).unlink()
    subject = read_subject(folder)
    assert subject.outcome is None
    assert subject.metrics is not None
    assert "did not come to its end" in subject.notes[0]


def test_edited_files_of_a_bundle_are_said(bundle, tmp_path):
    folder = with_result(bundle, tmp_path / "b")
    (folder / "train.py").write_text("# mine\n")
    assert "train.py" in read_subject(folder).notes[0]


def test_each_document_alone_is_known_by_what_it_holds(tmp_path):
    for name, document in (("p", plan()), ("c", profile()), ("o", outcome()), ("r", outcome().results[0])):
        store.write_document(tmp_path / f"{name}.json", document)
    assert read_subject(tmp_path / "p.json").plan == plan()
    assert store.dump(read_subject(tmp_path / "c.json").profile) == store.dump(profile())
    assert read_subject(tmp_path / "o.json").outcome == outcome()
    alone = read_subject(tmp_path / "r.json").outcome
    assert alone is not None
    assert alone.results == outcome().results[:1]


def test_a_hand_written_cluster_file_is_a_subject_too(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[[node]]\ncount = 2\ngpus = "8xA100-80GB"\n')
    assert report(path, "-o", tmp_path / "r.html") == 0
    assert "map" in figures(tmp_path / "r.html")


def test_a_cluster_that_is_not_the_plans_own_is_said(tmp_path):
    store.write_document(tmp_path / "plan.json", plan())
    store.write_document(tmp_path / "c.json", profile())
    subject = read_subject(tmp_path / "plan.json", tmp_path / "c.json")
    assert store.dump(subject.profile) == store.dump(profile())
    assert "has no cpu plain, which the plan uses" in subject.notes[0]


def test_two_clusters_are_refused(tmp_path):
    store.write_document(tmp_path / "c.json", profile())
    with pytest.raises(UsageError, match="second one"):
        read_subject(tmp_path / "c.json", tmp_path / "c.json")


def test_json_prints_the_tables_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store.write_document(tmp_path / "o.json", outcome())
    assert report("o.json", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert [entry["figure"] for entry in data] == ["compared-0", "compared-1", "winner"]
    assert not (tmp_path / "report.html").exists()


def test_a_report_imports_no_heavy_library(bundle, tmp_path):
    program = (
        "import sys; from stratadvisor.cli import run; code = run(sys.argv[1:]);"
        "print(code, sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'pandas', 'pynvml', 'psutil', 'numpy'}))"
    )
    command = [sys.executable, "-c", program, "report", str(bundle), "-o", str(tmp_path / "r.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_same_bundle_gives_the_same_bytes(bundle, tmp_path):
    for name in ("a", "b"):
        assert report(bundle, "-o", tmp_path / name) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_is_no_report_is_not_replaced_without_force(tmp_path, capsys):
    store.write_document(tmp_path / "o.json", outcome())
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    assert report(tmp_path / "o.json", "-o", mine) == 2
    assert mine.read_text() == "mine"
    assert "--force" in capsys.readouterr().err
    assert report(tmp_path / "o.json", "-o", mine, "--force") == 0
    assert report(tmp_path / "o.json", "-o", mine) == 0  # a report of ours is written anew


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not JSON"),
        ("[]", "not an object"),
        ("{}", "neither a plan, a profile, a comparison nor a validation result"),
        ('{"results": []}', "results"),
        ('{"steps_asked": 1}', "strategy"),
        ('{"nodes": []}', "nodes"),
        ('{"predicted": 1}', "plan.json"),
        ("\x00\x01", "not JSON"),
    ],
)
def test_garbage_is_one_sentence_and_nothing_is_written(content, words, tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(content)
    assert report(path, "-o", tmp_path / "r.html") in (1, 2, 4)
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("arguments", [["nowhere"], ["nowhere.json"], ["."], [".", "-o", "."]])
def test_what_is_not_there_is_one_sentence(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert report(*arguments) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_for_the_page(tmp_path, capsys):
    store.write_document(tmp_path / "o.json", outcome())
    assert report(tmp_path / "o.json", "-o", tmp_path / "no" / "r.html") == 1
    assert "r.html" in capsys.readouterr().err


def test_without_the_charting_library_there_is_a_sentence_and_the_way_to_install_it(tmp_path, monkeypatch, capsys):
    store.write_document(tmp_path / "o.json", outcome())
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert report(tmp_path / "o.json", "-o", tmp_path / "r.html") == 1
    err = capsys.readouterr().err
    assert "vl-convert-python" in err
    assert "pip install vl-convert-python" in err
    assert not (tmp_path / "r.html").exists()
