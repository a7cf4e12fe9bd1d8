from __future__ import annotations

import pytest
from rule_texts import SPECS, SPEEDS, replaced, small_ruleset

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.check import problems
from stratadvisor.rules_engine.examples import run_examples
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.facts import Fact

EXTEND = """\
schema_version = 1

[question]
id = "speeds"
mode = "extend"

[[branch]]
id = "MY01"
name = "twins"
before = "SA1001"
when.all = ["cluster.speed_spread <= 1.05"]
set = { family = "hierarchical" }
because = "Here we do it so."
sources = ["our habit"]

[[example]]
facts = { "cluster.speed_spread" = 1.05 }
takes = "MY01"
"""
REPLACE = replaced(
    replaced(replaced(SPEEDS, "SA10", "MY10", 9), "<= 1.1", "<= 1.5"), "entry = true", 'mode = "replace"'
)


def branch_at(spread: float, *overlays: str) -> str:
    facts = {"cluster.speed_spread": Fact(name="cluster.speed_spread", value=spread, origin="measured")}
    return walk(small_ruleset(overlays=overlays), facts, SPECS).decisions[0].branch


def test_an_extension_stands_where_its_anchor_says() -> None:
    ruleset = small_ruleset(overlays=(EXTEND,))
    assert [b.id for b in ruleset.questions["speeds"].branches] == ["MY01", "SA1001", "SA1090", "SA1099"]
    assert problems(ruleset, SPECS) == ()
    assert [branch_at(s, EXTEND) for s in (1.05, 1.06, 1.2)] == ["MY01", "SA1001", "SA1090"]
    after = replaced(EXTEND, "before", "after")
    ids = [b.id for b in small_ruleset(overlays=(after,)).questions["speeds"].branches]
    assert ids == ["SA1001", "MY01", "SA1090", "SA1099"]


def test_an_extensions_branch_follows_the_questions_own_next() -> None:
    question = small_ruleset(overlays=(EXTEND,)).questions["speeds"]
    assert question.next_of(question.branches[0]) == "links"
    assert question.entry
    assert question.ask == "Are they equal?"


def test_shipped_examples_that_now_take_an_overlays_branch_are_overridden_not_failed() -> None:
    wide = replaced(EXTEND, "<= 1.05", "<= 1.105")
    results = run_examples(small_ruleset(overlays=(wide,)), SPECS)
    status = {r.example.takes: r.status for r in results if r.question == "speeds"}
    assert status == {"SA1001": "overridden", "SA1090": "passed", "SA1099": "passed", "MY01": "passed"}


def test_an_overlays_own_wrong_example_fails() -> None:
    wrong = replaced(EXTEND, '"cluster.speed_spread" = 1.05', '"cluster.speed_spread" = 1.06')
    results = run_examples(small_ruleset(overlays=(wrong,)), SPECS)
    assert [(r.example.takes, r.took) for r in results if r.status == "failed"] == [("MY01", "SA1001")]


def test_a_branch_can_be_disabled_and_its_examples_go_with_it() -> None:
    without = replaced(EXTEND, 'mode = "extend"', 'mode = "extend"\ndisable = ["SA1001"]')
    without = replaced(without, "before", "after")
    with pytest.raises(RuleError) as caught:
        small_ruleset(overlays=(without,))
    assert "SA1001" in caught.value.message  # the anchor itself is gone
    without = replaced(without, 'after = "SA1001"', 'before = "SA1090"')
    ruleset = small_ruleset(overlays=(without,))
    assert [b.id for b in ruleset.questions["speeds"].branches] == ["MY01", "SA1090", "SA1099"]
    assert problems(ruleset, SPECS) == ()
    assert branch_at(1.08, without) == "SA1090"


def test_the_fallbacks_can_be_exchanged_without_an_anchor() -> None:
    other = replaced(EXTEND, 'mode = "extend"', 'mode = "extend"\ndisable = ["SA1099"]')
    other = replaced(other, 'before = "SA1001"\nwhen.all = ["cluster.speed_spread <= 1.05"]', 'when = "unknown"')
    other = replaced(other, '{ "cluster.speed_spread" = 1.05 }', "{}")
    ruleset = small_ruleset(overlays=(other,))
    assert problems(ruleset, SPECS) == ()
    assert walk(ruleset, {}, SPECS).decisions[0].branch == "MY01"


def test_a_replacement_takes_the_place_of_the_question_and_stays_the_entry() -> None:
    ruleset = small_ruleset(overlays=(REPLACE,))
    assert list(ruleset.questions) == ["speeds", "links"]
    assert problems(ruleset, SPECS) == ()
    assert [branch_at(s, REPLACE) for s in (1.5, 1.51)] == ["MY1001", "MY1090"]


def test_the_last_overlay_lies_on_top() -> None:
    second = replaced(replaced(EXTEND, "MY01", "OUR01", 9), 'before = "SA1001"', 'before = "MY01"')
    ids = [b.id for b in small_ruleset(overlays=(EXTEND, second)).questions["speeds"].branches]
    assert ids[:3] == ["OUR01", "MY01", "SA1001"]


@pytest.mark.parametrize(
    ("text", "part", "hint"),
    [
        (replaced(EXTEND, 'mode = "extend"\n', ""), "already in rules/10_speeds.toml", "mode"),
        (replaced(EXTEND, 'id = "speeds"', 'id = "speed"'), "no question speed", "speeds"),
        (replaced(EXTEND, 'before = "SA1001"\n', ""), "does not say where", "before"),
        (replaced(EXTEND, 'before = "SA1001"', 'before = "SA1011"'), "SA1011", "SA10"),
        (replaced(EXTEND, 'mode = "extend"', 'mode = "extend"\ndisable = ["SA1011"]'), "SA1011", "SA10"),
        (
            replaced(replaced(EXTEND, 'id = "speeds"', 'id = "fresh"'), 'mode = "extend"', 'disable = ["SA1001"]'),
            "disable",
            "",
        ),
    ],
)
def test_an_overlay_that_fits_nothing_is_refused(text: str, part: str, hint: str) -> None:
    with pytest.raises(RuleError) as caught:
        small_ruleset(overlays=(text,))
    assert part in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.message.startswith("mine/rules/0.toml")


def test_a_replacement_without_a_text_keeps_the_question() -> None:
    silent = replaced(REPLACE, 'ask = "Are they equal?"\n', "")
    question = small_ruleset(overlays=(silent,)).questions["speeds"]
    assert question.ask == "Are they equal?"
    assert [b.id for b in question.branches] == ["MY1001", "MY1090", "MY1099"]
    other = replaced(REPLACE, "Are they equal?", "Are they alike?")
    assert small_ruleset(overlays=(other,)).questions["speeds"].ask == "Are they alike?"
