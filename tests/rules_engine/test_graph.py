from __future__ import annotations

import re

import pytest
from rule_texts import SPEEDS, replaced, small_ruleset

from stratadvisor.derive.facts import SPECS
from stratadvisor.errors import RuleError
from stratadvisor.rules_engine import graph
from stratadvisor.rules_engine.load import load_ruleset


def test_mermaid_has_each_question_once_and_only_edges_between_them() -> None:
    ruleset = load_ruleset()
    lines = graph.mermaid(ruleset).splitlines()
    assert lines[0] == "flowchart TD"
    nodes = [m.group(1) for line in lines if (m := re.fullmatch(r'    (q_\w+)(?:\["[^"]*"\]|\(\["[^"]*"\]\))', line))]
    edges = [m.groups() for line in lines if (m := re.fullmatch(r'    (q_\w+) -->(?:\|"[^"]*"\|)? (q_\w+)', line))]
    assert sorted(nodes) == sorted(["q_end", *(f"q_{q}" for q in ruleset.questions)])
    assert len(lines) == 1 + len(nodes) + len(edges)
    expected = {(f"q_{q.id}", f"q_{q.next_of(b)}") for q in ruleset.questions.values() for b in q.branches}
    assert set(edges) == expected


def test_a_strangers_text_cannot_break_the_diagram() -> None:
    text = replaced(SPEEDS, 'ask = "Are they equal?"', 'ask = \'"]; click x "javascript:y" <b>`|\'')
    page = graph.mermaid(small_ruleset(text))
    label = next(line for line in page.splitlines() if line.startswith("    q_speeds("))
    assert re.fullmatch(r'    q_speeds\(\["[^"\]<>`|;]*"\]\)', label)


def test_text_and_index_name_every_branch_with_its_condition() -> None:
    ruleset = small_ruleset()
    for drawing in (graph.text(ruleset), graph.index(ruleset)):
        for identifier in ("SA1001", "SA1090", "SA1099", "SA2001", "SA2090", "SA2099"):
            assert len(re.findall(identifier, drawing)) == 1
        assert "cluster.speed_spread <= 1.1" in drawing
        assert "(link.name == 'ib0' or link.name == 'eth0') and not chosen.family == 'local_sgd'" in drawing
        assert "the fact cpu.workers" in drawing


def test_rows_of_the_tables_have_as_many_cells_as_their_head() -> None:
    for table in (graph.index(load_ruleset()), graph.facts_table(SPECS), graph.settable_table()):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = f"before\n{graph.BEGIN}\nold\n{graph.FINISH}\nafter\n"
    once = graph.updated(page, "new\n")
    assert once == f"before\n{graph.BEGIN}\nnew\n{graph.FINISH}\nafter\n"
    assert graph.updated(once, "new\n") == once
    for missing in (graph.BEGIN, graph.FINISH):
        with pytest.raises(RuleError):
            graph.updated(page.replace(missing, ""), "new\n")
