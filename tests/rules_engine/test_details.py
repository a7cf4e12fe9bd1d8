"""Limits, names and lines of rule files at their exact borders."""

from __future__ import annotations

from pathlib import Path

import pytest
from rule_texts import LINKS, SPECS, SPEEDS, replaced, small_ruleset

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.check import check, problems
from stratadvisor.rules_engine.examples import run_examples
from stratadvisor.rules_engine.graph import condition_text, mermaid, sets_text, text
from stratadvisor.rules_engine.load import (
    MAX_BRANCHES,
    MAX_EXAMPLES,
    MAX_FILE_BYTES,
    MAX_FILES,
    load_ruleset,
    parse_file,
    ruleset_of,
)
from stratadvisor.rules_engine.model import FromFact, chosen_specs, with_chosen
from stratadvisor.rules_engine.tables import MAX_CLAUSES, MAX_TEXT
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.rules import SETTABLE

BRANCH = """
[[branch]]
id = "X{number}"
name = "x"
when.all = ["cluster.speed_spread <= 1.{number}"]
because = "x"
"""
EXAMPLE = '\n[[example]]\nfacts = {}\ntakes = "SA1099"\n'
CLAUSE = '"cluster.speed_spread <= 1.1"'


def test_a_branch_has_so_many_clauses_over_all_of_its_lists() -> None:
    half = f"[{', '.join([CLAUSE] * (MAX_CLAUSES // 2))}]"
    fits = replaced(SPEEDS, f"when.all = [{CLAUSE}]", f"when.all = {half}\nwhen.not = {half}")
    assert len(parse_file(fits, "f", shipped=True).branches[0].condition.clauses) == MAX_CLAUSES == 24
    more = replaced(fits, "when.not = [", f"when.not = [{CLAUSE}, ")
    with pytest.raises(RuleError, match="at most 24 clauses"):
        parse_file(more, "f", shipped=True)


def test_texts_and_values_have_a_thousand_characters() -> None:
    assert MAX_TEXT == 1000
    for length, fits in ((1000, True), (1001, False)):
        for old, new in (
            ('"Nobody waits."', f'"{"x" * length}"'),
            ('set = { family = "synchronous" }', f'set = {{ environment.X = "{"x" * length}" }}'),
        ):
            changed = replaced(SPEEDS, old, new)
            if fits:
                parse_file(changed, "f", shipped=True)
            else:
                with pytest.raises(RuleError, match="branch SA1001"):
                    parse_file(changed, "f", shipped=True)


def test_a_file_has_so_many_branches_and_examples() -> None:
    assert (MAX_BRANCHES, MAX_EXAMPLES) == (64, 400)
    full = SPEEDS + "".join(BRANCH.format(number=i) for i in range(10, 10 + MAX_BRANCHES - 3))
    assert len(parse_file(full, "f", shipped=True).branches) == 64
    with pytest.raises(RuleError, match=r"65 tables \[\[branch\]\]; 64 is the limit"):
        parse_file(full + BRANCH.format(number=99), "f", shipped=True)
    many = SPEEDS + EXAMPLE * (MAX_EXAMPLES - 3)
    assert len(parse_file(many, "f", shipped=True).examples) == 400
    with pytest.raises(RuleError, match=r"401 tables \[\[example\]\]; 400 is the limit"):
        parse_file(many + EXAMPLE, "f", shipped=True)


def test_a_folder_has_so_many_files_of_such_a_size(tmp_path: Path) -> None:
    assert (MAX_FILES, MAX_FILE_BYTES) == (200, 256 * 1024)
    rules = tmp_path / "rules"
    rules.mkdir()
    mine = replaced(replaced(LINKS, 'id = "links"', 'id = "mine"'), "SA2", "MY2", 6)
    fill = "#" * (MAX_FILE_BYTES - len(mine) - 1) + "\n"
    (rules / "1.toml").write_text(mine + fill, encoding="utf-8")
    assert "mine" in load_ruleset((tmp_path,)).questions
    (rules / "1.toml").write_text(mine + "#" + fill, encoding="utf-8")
    with pytest.raises(RuleError, match="larger than 256 KiB"):
        load_ruleset((tmp_path,))
    (rules / "1.toml").write_text(mine, encoding="utf-8")
    for i in range(2, MAX_FILES + 2):
        (rules / f"{i}.toml").write_text("", encoding="utf-8")
    with pytest.raises(RuleError, match="holds 201 rule files; 200 is the limit"):
        load_ruleset((tmp_path,))
    (rules / "201.toml").unlink()
    with pytest.raises(RuleError, match="schema_version"):  # the limit is kept; the second file is empty
        load_ruleset((tmp_path,))


def test_branches_and_examples_that_cannot_be_named_are_counted_from_one() -> None:
    with pytest.raises(RuleError, match=r"\[\[branch\]\] number 2"):
        parse_file(replaced(SPEEDS, 'id = "SA1090"\n', ""), "f", shipped=True)
    with pytest.raises(RuleError, match=r"\[\[example\]\] number 3"):
        parse_file(replaced(SPEEDS, 'takes = "SA1099"', "takes = 1"), "f", shipped=True)
    assert [e.number for e in parse_file(SPEEDS, "f", shipped=True).examples] == [1, 2, 3]


def test_a_branch_knows_its_line() -> None:
    lines = SPEEDS.splitlines()
    for branch in parse_file(SPEEDS, "f", shipped=True).branches:
        assert lines[branch.line - 1] == f'id = "{branch.id}"'


def test_results_of_examples_are_named_after_branch_and_position() -> None:
    results = run_examples(small_ruleset(), SPECS)
    names = ["SA1001[1]", "SA1090[2]", "SA1099[3]", "SA2001[1]", "SA2090[2]", "SA2099[3]"]
    assert [r.name for r in results] == names
    assert {r.status for r in results} == {"passed"}


def test_an_example_that_still_takes_an_overlays_own_branch_passed() -> None:
    mine = (
        'schema_version = 1\n[question]\nid = "speeds"\nmode = "extend"\n[[branch]]\nid = "MY1"\nname = "m"\n'
        'when.all = ["cluster.speed_spread <= 1.05"]\nbefore = "SA1001"\nbecause = "x"\nsources = ["a book"]\n'
        '[[example]]\nfacts = { "cluster.speed_spread" = 1.0 }\ntakes = "MY1"\n'
    )
    results = run_examples(small_ruleset(overlays=(mine,)), SPECS)
    assert {r.status for r in results} == {"passed"}
    # a wrong example of the shipped files is a failure, and no wish of an overlay, while a shipped branch is taken
    wrong = replaced(SPEEDS, '"cluster.speed_spread" = 1.11', '"cluster.speed_spread" = 1.09')
    status = [r.status for r in run_examples(small_ruleset(wrong, overlays=(mine,)), SPECS)]
    assert status.count("failed") == 1
    assert "overridden" not in status


def test_an_overlays_wrong_example_is_no_wish_of_the_overlay() -> None:
    mine = (
        'schema_version = 1\n[question]\nid = "speeds"\nmode = "extend"\n'
        '[[branch]]\nid = "MY1"\nname = "m"\nwhen.all = ["cluster.speed_spread <= 0.5"]\nbefore = "SA1001"\n'
        'because = "x"\nsources = ["a book"]\n'
        '[[example]]\nfacts = { "cluster.speed_spread" = 0.5 }\ntakes = "SA1001"\n'
    )
    wrong = [r for r in run_examples(small_ruleset(overlays=(mine,)), SPECS) if r.status != "passed"]
    assert [(r.took, r.status) for r in wrong] == [("MY1", "failed")]


def test_a_wrong_value_is_told_the_nearest_or_all() -> None:
    for value, hint in (("synchronus", "did you mean synchronous?"), ("zzz", "one of ")):
        changed = replaced(SPEEDS, 'family = "synchronous"', f'family = "{value}"')
        (found,) = [p for p in problems(small_ruleset(changed), SPECS) if p.kind == "settable"]
        assert found.hint.startswith(hint)
        assert ("one of" in found.hint) is (value == "zzz")
    changed = replaced(SPEEDS, "family =", "famly =")
    (found,) = [p for p in problems(small_ruleset(changed), SPECS) if p.kind == "settable"]
    assert found.hint == "did you mean family?"


def test_one_fault_is_said_alone_and_of_several_how_many_more() -> None:
    one = replaced(SPEEDS, 'because = "Nobody waits."', 'because = "  "')
    with pytest.raises(RuleError) as caught:
        check(small_ruleset(one), SPECS)
    assert "more" not in str(caught.value)
    two = replaced(one, 'because = "Somebody waits."', 'because = "  "')
    with pytest.raises(RuleError, match=r"\(and 1 more: stratadvisor rules check lists them\)"):
        check(small_ruleset(two), SPECS)
    found = problems(small_ruleset(one), SPECS)[0]
    line = one[: one.index('id = "SA1001"')].count("\n") + 1
    assert found.text == f"rules/10_speeds.toml:{line}: branch SA1001: the reason is empty"
    nameless = problems(small_ruleset(replaced(SPEEDS, 'ask = "Are they equal?"', 'ask = ""')), SPECS)[0]
    assert nameless.text == "rules/10_speeds.toml: the question speeds has no text"


def test_an_empty_flowchart_has_no_first_question() -> None:
    found = problems(ruleset_of([]), SPECS)
    assert [(p.kind, p.file) for p in found] == [("entry", "rules/")]


def test_what_rules_choose_can_be_asked_with_its_type() -> None:
    found = chosen_specs()
    assert set(found) == {f"chosen.{key}" for key in SETTABLE}
    assert (found["chosen.data_loader_workers"].type, found["chosen.data_loader_workers"].unit) == ("number", "count")
    assert (found["chosen.family"].type, found["chosen.family"].unit) == ("text", "")
    assert found["chosen.offload_allowed"].type == "boolean"
    assert set(with_chosen(SPECS)) == set(SPECS) | set(found)


def test_a_flowchart_in_words() -> None:
    ruleset = small_ruleset()
    fast = ruleset.questions["links"].branches[0]
    assert condition_text(fast) == (
        "link.bytes_per_second >= 100Gb/s and (link.name == 'ib0' or link.name == 'eth0')"
        " and not chosen.family == 'local_sgd'"
    )
    assert sets_text(fast) == (
        "environment.GLOO_SOCKET_IFNAME = the fact link.name, environment.WORKERS = the fact cpu.workers"
    )
    equal, unequal, unknown = ruleset.questions["speeds"].branches
    assert (condition_text(unequal), condition_text(unknown)) == ("otherwise", "a fact needed is unknown")
    assert sets_text(equal) == "family = synchronous"
    lines = text(ruleset).splitlines()
    assert lines[:5] == [
        "speeds: Are they equal?",
        "  SA1001 equal",
        "      when cluster.speed_spread <= 1.1",
        "      set  family = synchronous",
        "      next links",
    ]
    assert lines[8] == "      next end"
    compiled = replaced(SPEEDS, 'family = "synchronous"', "compile_model = true")
    assert sets_text(small_ruleset(compiled).questions["speeds"].branches[0]) == "compile_model = true"


def test_edges_of_the_diagram_are_named_where_they_tell_something() -> None:
    drawn = mermaid(small_ruleset())
    assert '|"equal: SYNCHRONOUS<br/>not known"| q_links' in drawn
    assert '|"unequal: LOCAL SGD"| q_end' in drawn
    # one way on, and no branch decides about the family
    plain = replaced(LINKS, 'family = "hierarchical", ', "")
    assert "q_links --> q_end" in mermaid(small_ruleset(links=plain))


def test_texts_of_the_environment_are_what_a_shell_reads() -> None:
    values = {"true": "1", "false": "0", "3": "3", "2.5": "2.5", '"x y"': "x y"}
    for written, expected in values.items():
        one = replaced(SPEEDS, 'set = { family = "synchronous" }', f"set = {{ environment.X = {written} }}")
        known = {"cluster.speed_spread": Fact(name="cluster.speed_spread", value=1.0, origin="measured")}
        assert walk(small_ruleset(one), known, SPECS).settings["environment.X"] == expected


def test_a_value_from_a_fact_is_only_that() -> None:
    setting = parse_file(SPEEDS, "f", shipped=True).branches[2].sets["data_loader_workers"]
    assert setting == FromFact("cpu.workers")
    for wrong in ('{ fact = "cpu.workers", more = 1 }', "{ fact = 3 }", '{ facts = "cpu.workers" }'):
        with pytest.raises(RuleError, match="neither a number, a text nor a fact"):
            parse_file(replaced(SPEEDS, '{ fact = "cpu.workers" }', wrong), "f", shipped=True)


def test_a_setting_outside_the_environment_is_unknown_whatever_it_is_called() -> None:
    changed = replaced(SPEEDS, 'set = { family = "synchronous" }', 'set = { LD_PRELOAD = "x" }')
    (problem,) = problems(small_ruleset(changed), SPECS)
    assert (problem.kind, problem.message) == ("settable", "nothing called LD_PRELOAD can be set")


@pytest.mark.parametrize("sign", ["\\n", "\\u0000"])
def test_a_value_is_one_line(sign: str) -> None:
    changed = replaced(SPEEDS, 'set = { family = "synchronous" }', f'set = {{ environment.X = "a{sign}b" }}')
    with pytest.raises(RuleError, match="one line of at most 1000 characters"):
        parse_file(changed, "f", shipped=True)


def test_a_flowchart_that_was_not_checked_stops_where_it_does_not_go_on() -> None:
    speeds = replaced(SPEEDS, 'next = "links"\n', "")
    ruleset = small_ruleset(speeds)
    fast = {"cluster.speed_spread": Fact(name="cluster.speed_spread", value=1.0, origin="measured")}
    with pytest.raises(RuleError, match="branch SA1001 does not say what comes next"):
        walk(ruleset, fast, SPECS)
    # SA1090 says itself where it leads
    slow = {"cluster.speed_spread": Fact(name="cluster.speed_spread", value=2.0, origin="measured")}
    assert [d.branch for d in walk(ruleset, slow, SPECS).decisions] == ["SA1090"]


def test_an_example_with_a_fact_that_nobody_knows_names_itself() -> None:
    changed = replaced(SPEEDS, 'facts = { "cluster.speed_spread" = 1.1 }', 'facts = { "cluster.sped_spread" = 1.1 }')
    with pytest.raises(RuleError, match=r"example 1: there is no fact cluster\.sped_spread") as caught:
        run_examples(small_ruleset(changed), SPECS)
    assert caught.value.hint == "did you mean cluster.speed_spread?"


def test_a_branch_is_found_by_its_id() -> None:
    found = small_ruleset().branch("SA2090")
    assert found is not None
    assert (found[0].id, found[1].name) == ("links", "slow-link")
    assert small_ruleset().branch("SA9999") is None


def test_an_id_whose_key_is_quoted_has_no_line() -> None:
    branches = parse_file(replaced(SPEEDS, 'id = "SA1001"', '"id" = "SA1001"'), "f", shipped=True).branches
    assert (branches[0].line, branches[1].line) == (0, SPEEDS[: SPEEDS.index('id = "SA1090"')].count("\n") + 1)


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "PATH", "PYTHONPATH"])
def test_a_variable_that_decides_which_code_runs_is_refused(variable: str) -> None:
    changed = replaced(SPEEDS, 'set = { family = "synchronous" }', f'set = {{ environment.{variable} = "x" }}')
    with pytest.raises(RuleError, match=f"{variable} decides which code runs"):
        parse_file(changed, "f", shipped=True)


def test_a_question_has_branches_and_lists_are_lists_of_tables() -> None:
    head = SPEEDS[: SPEEDS.index("[[branch]]")]
    with pytest.raises(RuleError, match=r"the question speeds has no \[\[branch\]\]"):
        parse_file(head, "f", shipped=True)
    with pytest.raises(RuleError, match="branch must be a list of tables") as caught:
        parse_file(f"branch = 3\n{head}", "f", shipped=True)
    assert "[[branch]]" in caught.value.hint
    assert parse_file(replaced(head, 'next = "links"', 'mode = "extend"'), "f", shipped=False).branches == ()


def test_a_rule_file_that_the_system_will_not_read_is_one_sentence(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.toml").symlink_to("/proc/self/mem")  # a file of no size, whose first byte is not mapped
    with pytest.raises(RuleError, match=r"mine\.toml cannot be read: "):
        load_ruleset(overlays=[tmp_path])
