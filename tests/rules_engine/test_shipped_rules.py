from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratadvisor.conditions import literal, spec_of
from stratadvisor.derive.facts import SPECS
from stratadvisor.resources import bundled
from stratadvisor.rules_engine import graph
from stratadvisor.rules_engine.check import problems
from stratadvisor.rules_engine.examples import run_example
from stratadvisor.rules_engine.load import load_ruleset
from stratadvisor.rules_engine.model import SHIPPED_PREFIX, FromFact
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.rules import FAMILIES

RULES = load_ruleset()
EXAMPLES = [(question, example) for question in RULES.questions.values() for example in question.examples]
BRANCHES = [(question, branch) for question in RULES.questions.values() for branch in question.branches]


def test_the_shipped_rules_have_no_static_fault() -> None:
    assert [p.text for p in problems(RULES, SPECS)] == []


@pytest.mark.parametrize(("question", "example"), EXAMPLES, ids=[f"{q.id}-{e.takes}-{e.number}" for q, e in EXAMPLES])
def test_an_example_of_the_rules_takes_the_branch_it_names(question: object, example: object) -> None:
    result = run_example(question, example, SPECS)  # type: ignore[arg-type]
    assert result.took == example.takes  # type: ignore[attr-defined]


@pytest.mark.parametrize(("question", "branch"), BRANCHES, ids=[b.id for _, b in BRANCHES])
def test_a_shipped_branch_is_numbered_after_its_file_and_reasons_in_sentences(question: object, branch: object) -> None:
    number = Path(branch.file).name.split("_")[0]  # type: ignore[attr-defined]
    assert re.fullmatch(rf"{SHIPPED_PREFIX}{number}\d\d", branch.id)  # type: ignore[attr-defined]
    for sentence in (branch.because, branch.warn):  # type: ignore[attr-defined]
        assert not sentence or sentence.endswith(".")
        assert sentence.isascii()


THRESHOLDS = sorted(
    {
        (branch.id, clause.fact, clause.operator, float(literal(clause.right.text, spec_of(clause.fact, SPECS))))
        for _, branch in BRANCHES
        for clause in branch.condition.clauses
        if clause.operator in ("<", "<=", ">", ">=") and clause.right.kind != "fact"
    }
)


@pytest.mark.parametrize(("branch", "fact", "operator", "value"), THRESHOLDS)
def test_every_threshold_has_examples_on_both_sides(branch: str, fact: str, operator: str, value: float) -> None:
    question, _ = RULES.branch(branch) or pytest.fail(branch)
    values = [
        float(literal(e.facts[fact], SPECS[fact]))  # type: ignore[arg-type]  # a number
        for e in question.examples
        if fact in e.facts
    ]
    sides = {v < value or (v == value and operator in ("<=", ">")) for v in values}
    assert sides == {True, False}


def test_every_family_is_chosen_by_some_branch() -> None:
    assert {b.sets["family"] for _, b in BRANCHES if "family" in b.sets} == set(FAMILIES)


def test_no_branch_asks_for_the_name_of_a_gpu() -> None:
    conditions = " ".join(c.text for _, b in BRANCHES for c in b.condition.clauses)
    assert not re.search(r"[AHVBT]100|A10\b|RTX|30[89]0|40[89]0|H200|MI\d", conditions)


def test_no_number_in_circulation_that_is_wrong_stands_in_the_texts() -> None:
    # shares of communication, savings of compression, losses of asynchronous training are computed, not quoted
    text = " ".join(f"{b.because} {b.warn}" for _, b in BRANCHES)
    assert not re.search(r"\b(40|50|60|70|75)\s?(%|percent)", text)
    assert "exponential" not in text


def test_environment_variables_come_from_facts_where_they_name_something_of_the_machine() -> None:
    for _, branch in BRANCHES:
        for key, value in branch.sets.items():
            if key.endswith(("_IFNAME", "OMP_NUM_THREADS")):
                assert isinstance(value, FromFact), (branch.id, key)


def test_nothing_is_known_and_the_flowchart_still_answers() -> None:
    outcome = walk(RULES, {}, SPECS)
    assert outcome.settings["family"] == "synchronous"
    assert all(d.branch.endswith("99") for d in outcome.decisions)


def facts(**values: float | bool | str) -> dict[str, Fact]:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return {n: Fact(name=n, value=v, origin="measured") for n, v in named.items()}


UNEQUAL = facts(
    cluster__num_devices=16,
    cluster__num_nodes=2,
    interconnect__reported_only=False,
    cluster__speed_spread=2.5,
    family__uneven_synchronous__feasible=True,
    family__uneven_synchronous__relative_time=1.0,
    family__hierarchical__feasible=True,
    family__hierarchical__relative_time=0.7,
    family__local_sgd__feasible=True,
    family__local_sgd__relative_time=0.4,
    family__asynchronous__feasible=True,
    family__asynchronous__relative_time=0.35,
    async__expected_staleness_steps=15,
    workload__max_staleness_steps=64,
)


def family(*changes: dict[str, Fact]) -> str:
    known = dict(UNEQUAL)
    for change in changes:
        known.update(change)
    return str(walk(RULES, known, SPECS).settings["family"])


def test_the_skeleton_of_the_flowchart_from_end_to_end() -> None:
    equal = facts(cluster__speed_spread=1.0)
    steady = facts(sync__straggler_slowdown=1.02)
    hidden, exposed = (facts(sync__exposed_communication_fraction=v) for v in (0.05, 0.9))
    assert family(equal, hidden) == "synchronous"
    assert family(hidden) == "uneven_synchronous"
    assert family(exposed) == "local_sgd"
    assert family(exposed, steady) == "local_sgd"
    assert family(exposed, facts(family__local_sgd__relative_time=0.8)) == "hierarchical"
    assert family(exposed, facts(sync__straggler_slowdown=1.5)) == "asynchronous"
    one = facts(cluster__num_devices=1, cluster__num_nodes=1, family__single__feasible=True)
    assert family(one) == "single"


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
@pytest.mark.parametrize("spread", [1.0, 2.5])
@pytest.mark.parametrize("exposed", [0.05, 0.3, 0.9])
def test_forbidden_staleness_leaves_exact_methods_whatever_would_be_gained(
    slowdown: float, spread: float, exposed: float
) -> None:
    chosen = family(
        facts(
            workload__max_staleness_steps=0,
            sync__straggler_slowdown=slowdown,
            cluster__speed_spread=spread,
            sync__exposed_communication_fraction=exposed,
        )
    )
    assert chosen in ("synchronous", "uneven_synchronous")


def test_the_readme_shows_the_rules_as_they_are() -> None:
    page = (bundled("rules") / "README.md").read_text(encoding="utf-8")
    assert page == graph.updated(page, graph.markdown(RULES, SPECS)), (
        "stale: run stratadvisor rules graph --update rules/README.md"
    )
