from __future__ import annotations

import pytest
from rule_texts import LINKS, SPECS, SPEEDS, replaced, small_ruleset

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.check import check, problems
from stratadvisor.rules_engine.load import ruleset_of

CONDITION = 'when.all = ["cluster.speed_spread <= 1.1"]'
SETS = 'set = { family = "synchronous" }'
ISLAND = replaced(replaced(LINKS, 'id = "links"', 'id = "island"'), "SA2", "SA3", 9)

BROKEN = {
    # name: (text to replace in SPEEDS, replacement, kind, branch, part of the message, part of the hint)
    "unknown fact": (CONDITION, CONDITION.replace("speed_spread", "speed_spred"), "fact", "SA1001", "speed_spred",
                     "cluster.speed_spread"),
    "unit missing": (CONDITION, 'when.all = ["link.bytes_per_second >= 100"]', "unit", "SA1001", "no unit", ""),
    "wrong unit": (CONDITION, 'when.all = ["link.bytes_per_second >= 100GB"]', "unit", "SA1001", "100GB", ""),
    "number for text": (CONDITION, 'when.all = ["link.name == 3"]', "unit", "SA1001", "is a text", "quotes"),
    "ordering of texts": (CONDITION, "when.all = [\"link.name <= 'a'\"]", "unit", "SA1001", "compares numbers", "=="),
    "facts of two units": (CONDITION, 'when.all = ["link.bytes_per_second >= cpu.workers"]', "unit", "SA1001",
                           "cannot be compared", ""),
    "unknown setting": (SETS, 'set = { famly = "synchronous" }', "settable", "SA1001", "famly", "family"),
    "strange setting": (SETS, 'set = { zzzz = "x" }', "settable", "SA1001", "zzzz", "environment.NAME"),
    "unknown value": (SETS, 'set = { family = "synchronus" }', "settable", "SA1001", "synchronus", "synchronous"),
    "wrong type of value": (SETS, 'set = { offload_allowed = "yes" }', "settable", "SA1001", "boolean", ""),
    "boolean for number": (SETS, "set = { data_loader_workers = true }", "settable", "SA1001", "number", ""),
    "setting from unknown fact": (SETS, 'set = { data_loader_workers = { fact = "cpu.worker" } }', "fact", "SA1001",
                                  "cpu.worker", "cpu.workers"),
    "setting from fact of other type": (SETS, 'set = { precision = { fact = "cpu.workers" } }', "settable", "SA1001",
                                        "cpu.workers", ""),
    "environment from unknown fact": (SETS, 'set = { environment.X = { fact = "link.nam" } }', "fact", "SA1001",
                                      "link.nam", "link.name"),
    "no otherwise": ('when = "otherwise"', "when.all = [\"link.name == 'x'\"]", "otherwise", "", "otherwise", ""),
    "no unknown": ('when = "unknown"', "when.all = [\"link.name == 'x'\"]", "unknown", "", "unknown", ""),
    "two otherwise": (CONDITION, 'when = "otherwise"', "otherwise", "SA1090", "SA1001", ""),
    "no example": ('takes = "SA1001"', 'takes = "SA1090"', "example", "SA1001", "no example", 'takes = "SA1001"'),
    "example of no branch": ('takes = "SA1001"', 'takes = "SA1011"', "example", "", "SA1011", "SA10"),
    "example with unknown fact": ('{ "cluster.speed_spread" = 1.1 }', '{ "cluster.sped_spread" = 1.1 }', "fact", "",
                                  "sped_spread", "cluster.speed_spread"),
    "example with wrong unit": ('{ "link.name" = "eth0" }', '{ "link.bytes_per_second" = 5 }', "unit", "", "no unit",
                                ""),
    "no source": ('sources = ["a book"]', "sources = []", "source", "SA1001", "no source", "https://"),
    "empty reason": ('because = "Nobody waits."', 'because = "  "', "because", "SA1001", "empty", ""),
    "no text of the question": ('ask = "Are they equal?"', 'ask = ""', "ask", "", "no text", ""),
    "next unknown": ('next = "links"', 'next = "lings"', "next", "SA1001", "lings", "links"),
    "next missing": ('next = "links"\n', "", "next", "SA1001", "next", "end"),
    "no entry": ("entry = true\n", "", "entry", "", "first", "entry = true"),
    "circle of one": ('next = "links"', 'next = "speeds"', "cycle", "", "speeds -> speeds", ""),
    "duplicate branch": ('id = "SA1090"', 'id = "SA2090"', "duplicate", "SA2090", "already taken", ""),
    "same condition twice": (
        '[[branch]]\nid = "SA1090"',
        f'[[branch]]\nid = "SA1002"\nname = "again"\n{CONDITION}\nbecause = "x"\nsources = ["a book"]\n\n'
        '[[branch]]\nid = "SA1090"',
        "shadowed", "SA1002", "SA1001", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_reported_with_file_branch_and_hint(name: str) -> None:
    old, new, kind, branch, part, hint = BROKEN[name]
    ruleset = small_ruleset(replaced(SPEEDS, old, new))
    found = [p for p in problems(ruleset, SPECS) if p.kind == kind and p.branch == branch]
    assert found, problems(ruleset, SPECS)
    problem = found[0]
    assert part in problem.message
    assert hint in problem.hint
    assert problem.file in ("rules/10_speeds.toml", "rules/20_links.toml")
    assert problem.file in problem.text
    if branch:
        assert f"branch {branch}" in problem.text
    with pytest.raises(RuleError):
        check(ruleset, SPECS)


def test_the_small_flowchart_itself_is_without_fault() -> None:
    assert problems(small_ruleset(), SPECS) == ()
    check(small_ruleset(), SPECS)


def test_a_branch_is_found_by_its_line() -> None:
    text = replaced(SPEEDS, CONDITION, CONDITION.replace("speed_spread", "speed_spred"))
    (problem,) = problems(small_ruleset(text), SPECS)
    assert SPEEDS.splitlines()[problem.line - 1] == 'id = "SA1001"'
    assert f"rules/10_speeds.toml:{problem.line}: branch SA1001" in problem.text


def test_two_entries_a_circle_of_two_and_an_unreachable_question() -> None:
    two = small_ruleset(links=replaced(LINKS, 'next = "end"', 'next = "end"\nentry = true'))
    assert [p.kind for p in problems(two, SPECS)] == ["entry"]
    circle = small_ruleset(links=replaced(LINKS, 'next = "end"', 'next = "speeds"'))
    (problem,) = problems(circle, SPECS)
    assert (problem.kind, problem.message) == ("cycle", "the questions lead in a circle: speeds -> links -> speeds")
    texts = [("a.toml", SPEEDS, True), ("b.toml", LINKS, True), ("c.toml", ISLAND, True)]
    (problem,) = problems(ruleset_of(texts), SPECS)
    assert (problem.kind, problem.file) == ("unreachable", "c.toml")
    assert "island" in problem.message


def test_all_faults_are_found_at_once_and_the_error_says_how_many_more() -> None:
    text = replaced(replaced(SPEEDS, CONDITION, CONDITION.replace("spread", "spred")), "synchronous", "synchronus")
    assert len(problems(small_ruleset(text), SPECS)) == 2
    with pytest.raises(RuleError, match="and 1 more"):
        check(small_ruleset(text), SPECS)


def test_a_chain_of_many_questions_is_checked_without_recursion() -> None:
    def question(i: int) -> str:
        text = replaced(LINKS, 'id = "links"', f'id = "q{i}"' + ("\nentry = true" if i == 0 else ""))
        return replaced(
            replaced(text, "SA2", f"S{i}A", 9), 'next = "end"', f'next = "{f"q{i + 1}" if i < 1499 else "end"}"'
        )

    texts = [(f"{i}.toml", question(i), True) for i in range(1500)]
    assert problems(ruleset_of(texts), SPECS) == ()
