from __future__ import annotations

import json
from pathlib import Path

import pytest
from rule_texts import SPEEDS, replaced

from stratadvisor.cli import run
from stratadvisor.rules_engine import graph
from stratadvisor.rules_engine.load import load_ruleset

OVERLAY = """\
schema_version = 1
[question]
id = "node_speeds"
mode = "extend"
[[branch]]
id = "MY01"
name = "nearly-equal"
before = "SA4090"
when.all = ["cluster.speed_spread <= 1.2"]
next = "network_of_equal_nodes"
because = "We do not mind."
sources = ["our habit"]
[[example]]
facts = { "cluster.speed_spread" = 1.2 }
takes = "MY01"
"""


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    (tmp_path / "mine" / "rules").mkdir(parents=True)
    (tmp_path / "mine" / "rules" / "40.toml").write_text(OVERLAY)
    return tmp_path / "mine"


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["rules", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_check_and_test_pass_on_the_shipped_rules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "check")
    assert (code, err) == (0, "")
    assert "no fault" in out
    code, out, err = call(capsys, "test", "--json")
    report = json.loads(out)
    assert (code, report["failed"], report["overridden"]) == (0, 0, 0)
    assert (
        report["passed"] == len(report["examples"]) == sum(len(q.examples) for q in load_ruleset().questions.values())
    )


def test_an_overlay_is_checked_tested_listed_and_marked(capsys: pytest.CaptureFixture[str], overlay: Path) -> None:
    assert call(capsys, "check", "--overlay", str(overlay))[0] == 0
    code, out, _ = call(capsys, "test", "--overlay", str(overlay))
    assert code == 0
    assert "overridden" in out  # the shipped near miss at 1.11
    rows = json.loads(call(capsys, "list", "--overlay", str(overlay), "--json")[1])
    mine = [row for row in rows if row["origin"] == "overlay"]
    assert [row["branch"] for row in mine] == ["MY01"]
    assert mine[0]["file"] == str(overlay / "rules" / "40.toml")
    assert f"[{overlay / 'rules' / '40.toml'}]" in call(capsys, "list", "--overlay", str(overlay))[1]


def test_a_broken_overlay_is_reported_with_file_branch_and_hint(
    capsys: pytest.CaptureFixture[str], overlay: Path
) -> None:
    path = overlay / "rules" / "40.toml"
    path.write_text(replaced(OVERLAY, "cluster.speed_spread <=", "cluster.speed_spred <="))
    code, out, _ = call(capsys, "check", "--overlay", str(overlay))
    assert code == 5
    assert f"{path}:6: branch MY01" in out
    assert "did you mean cluster.speed_spread?" in out
    report = json.loads(call(capsys, "check", "--overlay", str(overlay), "--json")[1])
    assert [(p["kind"], p["branch"], p["line"]) for p in report["problems"]] == [("fact", "MY01", 6)]
    code, out, err = call(capsys, "test", "--overlay", str(overlay))
    assert (code, out) == (5, "")
    assert "MY01" in err


def test_a_wrong_example_fails_the_test_command(capsys: pytest.CaptureFixture[str], overlay: Path) -> None:
    (overlay / "rules" / "40.toml").write_text(
        replaced(OVERLAY, '"cluster.speed_spread" = 1.2', '"cluster.speed_spread" = 3')
    )
    code, out, _ = call(capsys, "test", "--overlay", str(overlay))
    assert code == 5
    assert "takes SA4090, says MY01" in out


@pytest.mark.parametrize("command", ["list", "check", "test", "graph"])
def test_a_file_that_is_no_toml_is_one_sentence(
    capsys: pytest.CaptureFixture[str], overlay: Path, command: str
) -> None:
    (overlay / "rules" / "40.toml").write_text("[question\n")
    code, out, err = call(capsys, command, "--overlay", str(overlay))
    assert (code, out) == (5, "")
    assert err.startswith("stratadvisor: ")
    assert "line 1" in err
    assert "Traceback" not in err


def test_show_prints_a_branch_or_a_question_and_helps_with_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "show", "SA4001")
    assert code == 0
    for part in (
        "nodes-equal-in-speed",
        "cluster.speed_spread <= 1.10",
        "because",
        "source",
        "rules/40_node_speeds.toml",
    ):
        assert part in out
    data = json.loads(call(capsys, "show", "SA4001", "--json")[1])
    assert (data["branch"], data["next"]) == ("SA4001", "network_of_equal_nodes")
    assert [b["branch"] for b in json.loads(call(capsys, "show", "node_speeds", "--json")[1])] == [
        "SA4001",
        "SA4090",
        "SA4099",
    ]
    code, _, err = call(capsys, "show", "node_speed")
    assert code == 2
    assert "did you mean node_speeds?" in err


def test_graph_draws_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "graph")[1].startswith("hardware_readiness: ")
    assert call(capsys, "graph", "--format", "mermaid")[1] == graph.mermaid(load_ruleset())
    assert "## Index of branches" in call(capsys, "graph", "--format", "markdown")[1]
    edges = json.loads(call(capsys, "graph", "--json")[1])["edges"]
    assert len(edges) == sum(len(q.branches) for q in load_ruleset().questions.values())


def test_graph_updates_a_page_between_its_markers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"mine\n{graph.BEGIN}\n{graph.FINISH}\n")
    assert call(capsys, "graph", "--update", str(page))[0] == 0
    assert page.read_text().startswith("mine\n")
    assert "```mermaid" in page.read_text()
    code, _, err = call(capsys, "graph", "--update", str(tmp_path / "absent.md"))
    assert code == 2
    assert "does not exist" in err


def test_control_characters_of_a_strangers_file_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], overlay: Path
) -> None:
    (overlay / "rules" / "40.toml").write_text(replaced(OVERLAY, "We do not mind.", "\\u001b[2J"))
    code, out, _ = call(capsys, "show", "MY01", "--overlay", str(overlay))
    assert code == 0
    assert "\x1b" not in out


def test_ids_of_the_shipped_rules_are_refused_in_an_overlay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "10.toml").write_text(SPEEDS)
    code, _, err = call(capsys, "check", "--overlay", str(tmp_path))
    assert code == 5
    assert "SA1001" in err
