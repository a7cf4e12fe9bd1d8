from __future__ import annotations

import pytest
from rule_texts import LINKS, SPECS, SPEEDS, replaced, small_ruleset

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.facts import Fact, FactValue


def facts(values: dict[str, FactValue], because: str = "") -> dict[str, Fact]:
    found = {n: Fact(name=n, value=v, origin="measured") for n, v in values.items() if v is not None}
    lacking = {n: Fact(name=n, value=None, origin="unknown", because=because) for n, v in values.items() if v is None}
    return found | lacking


def test_the_path_is_followed_and_everything_set_on_it_is_returned() -> None:
    known = facts({"cluster.speed_spread": 1.0, "link.bytes_per_second": 25e9, "link.name": "eth0", "cpu.workers": 4.0})
    outcome = walk(small_ruleset(), known, SPECS)
    assert [d.branch for d in outcome.decisions] == ["SA1001", "SA2001"]
    assert outcome.settings == {
        "family": "synchronous",
        "environment.GLOO_SOCKET_IFNAME": "eth0",
        "environment.WORKERS": "4",
    }
    assert outcome.warnings == ()
    first, second = outcome.decisions
    assert (first.question, first.ask, first.name) == ("speeds", "Are they equal?", "equal")
    assert first.because == "Nobody waits."
    assert first.source_file == "rules/10_speeds.toml"
    assert first.sources == ("a book",)
    assert [(c.fact, c.operator, c.expected, c.actual_text, c.outcome) for c in second.clauses] == [
        ("link.bytes_per_second", ">=", "100Gb/s", "25 GB/s", True),
        ("link.name", "==", "'ib0'", "eth0", False),
        ("link.name", "==", "'eth0'", "eth0", True),
        ("chosen.family", "==", "'local_sgd'", "synchronous", False),
    ]
    assert {c.origin for c in second.clauses} == {"measured", "estimated"}


def test_otherwise_is_taken_after_all_conditions_are_false_with_its_warning_and_end() -> None:
    outcome = walk(small_ruleset(), facts({"cluster.speed_spread": 2.5}), SPECS)
    assert [d.branch for d in outcome.decisions] == ["SA1090"]
    assert outcome.warnings == ("Not exact.",)
    assert outcome.decisions[0].passed_over == ("SA1001: cluster.speed_spread <= 1.1 is false (2.5)",)


def test_an_undecided_branch_ends_the_search_even_when_a_later_one_would_be_true() -> None:
    later = replaced(
        SPEEDS,
        '[[branch]]\nid = "SA1090"',
        '[[branch]]\nid = "SA1002"\nname = "later"\nwhen.all = ["link.name == \'eth0\'"]\n'
        'because = "x"\nsources = ["a book"]\n\n[[branch]]\nid = "SA1090"',
    )
    known = facts({"cluster.speed_spread": None, "link.name": "eth0", "link.bytes_per_second": 1.0}, "not measured")
    outcome = walk(small_ruleset(later), known, SPECS)
    decision = outcome.decisions[0]
    assert decision.branch == "SA1099"
    assert decision.passed_over == ("SA1001: cluster.speed_spread <= 1.1 is not decided (not measured)",)
    assert [(c.fact, c.outcome, c.actual_text) for c in decision.clauses] == [("cluster.speed_spread", None, "unknown")]
    decided = walk(small_ruleset(later), facts({"cluster.speed_spread": 2.0, "link.name": "eth0"}), SPECS)
    assert decided.decisions[0].branch == "SA1002"


def test_a_setting_from_an_unknown_fact_is_left_out_and_said() -> None:
    known = facts({"cluster.speed_spread": None, "cpu.workers": None}, "cores not read")
    outcome = walk(small_ruleset(), known, SPECS)
    assert "data_loader_workers" not in outcome.settings
    assert outcome.warnings == ("data_loader_workers is not set, since cpu.workers is unknown: cores not read",)


def test_a_setting_from_a_whole_number_is_an_integer() -> None:
    outcome = walk(small_ruleset(), facts({"cpu.workers": 3.0}), SPECS)
    assert outcome.settings["data_loader_workers"] == 3
    assert isinstance(outcome.settings["data_loader_workers"], int)


def test_a_later_branch_wins_over_an_earlier_one() -> None:
    known = facts({"cluster.speed_spread": 1.0, "link.bytes_per_second": 1.0, "link.name": "eth0"})
    outcome = walk(small_ruleset(), known, SPECS)
    assert outcome.decisions[0].sets == {"family": "synchronous"}
    assert outcome.settings == {"family": "hierarchical", "compression": "bf16"}


def test_what_an_earlier_branch_chose_can_be_asked_and_is_unknown_when_none_did() -> None:
    fast = {"link.bytes_per_second": 25e9, "link.name": "eth0"}
    assert walk(small_ruleset(), facts({"cluster.speed_spread": 1.0, **fast}), SPECS).decisions[1].branch == "SA2001"
    chosen_elsewhere = replaced(SPEEDS, 'set = { family = "synchronous" }', 'set = { family = "local_sgd" }')
    outcome = walk(small_ruleset(chosen_elsewhere), facts({"cluster.speed_spread": 1.0, **fast}), SPECS)
    assert outcome.decisions[1].branch == "SA2090"
    assert outcome.decisions[1].passed_over == ("SA2001: chosen.family == 'local_sgd' is true (local_sgd)",)
    assert walk(small_ruleset(), facts(fast), SPECS).decisions[1].branch == "SA2099"


def test_a_circle_is_an_error_even_without_the_check() -> None:
    circle = replaced(LINKS, 'next = "end"', 'next = "speeds"')
    with pytest.raises(RuleError, match="leads back to itself"):
        walk(small_ruleset(links=circle), facts({"cluster.speed_spread": 1.0}), SPECS)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("entry = true\n", "", "first question"),
        ('next = "links"', 'next = "lings"', "lings"),
        ('when.all = ["cluster.speed_spread <= 1.1"]', 'when.all = ["cluster.speed_spred <= 1.1"]', "speed_spred"),
        ('when = "unknown"', "when.all = [\"link.name == 'x'\"]", 'when = "unknown"'),
    ],
)
def test_a_faulty_flowchart_is_an_error_and_no_traceback(old: str, new: str, part: str) -> None:
    with pytest.raises(RuleError) as caught:
        walk(small_ruleset(replaced(SPEEDS, old, new)), {}, SPECS)
    assert part in caught.value.message


def test_the_same_rules_have_the_same_digest_and_a_changed_threshold_another() -> None:
    digest = walk(small_ruleset(), {}, SPECS).ruleset_digest
    assert digest == walk(small_ruleset(), {}, SPECS).ruleset_digest
    assert len(digest) == 16
    assert digest != walk(small_ruleset(replaced(SPEEDS, "<= 1.1", "<= 1.2")), {}, SPECS).ruleset_digest


def test_a_branch_whose_alternatives_all_fail_names_the_first_of_them() -> None:
    known = facts({"cluster.speed_spread": 1.0, "link.bytes_per_second": 25e9, "link.name": "wlan0"})
    decision = walk(small_ruleset(), known, SPECS).decisions[1]
    assert decision.passed_over == ("SA2001: link.name == 'ib0' is false (wlan0)",)


def test_a_value_from_a_fact_must_be_one_that_can_be_set() -> None:
    text = replaced(SPEEDS, 'set = { family = "synchronous" }', 'set = { family = { fact = "link.name" } }')
    with pytest.raises(RuleError) as caught:
        walk(small_ruleset(text), facts({"cluster.speed_spread": 1.0, "link.name": "eth0"}), SPECS)
    assert "branch SA1001 sets family to 'eth0'" in caught.value.message
    assert "local_sgd" in caught.value.hint
