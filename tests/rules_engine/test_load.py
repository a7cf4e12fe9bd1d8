from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_texts import SPEEDS, replaced

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine import load
from stratadvisor.rules_engine.load import load_ruleset, parse_file
from stratadvisor.rules_engine.model import FromFact

SETS = 'set = { family = "synchronous" }'


def test_a_file_becomes_a_question_with_branches_and_examples() -> None:
    question = parse_file(SPEEDS, "speeds.toml", shipped=True)
    assert (question.id, question.entry, question.next) == ("speeds", True, "links")
    assert [(b.id, b.kind) for b in question.branches] == [
        ("SA1001", "condition"),
        ("SA1090", "otherwise"),
        ("SA1099", "unknown"),
    ]
    assert question.branches[2].sets == {"data_loader_workers": FromFact("cpu.workers")}
    assert [question.next_of(b) for b in question.branches] == ["links", "end", "links"]
    first = question.examples[0]
    assert (first.takes, dict(first.facts)) == ("SA1001", {"cluster.speed_spread": 1.1})


def test_environment_may_be_written_as_a_table_or_with_dots() -> None:
    dotted = replaced(SPEEDS, SETS, 'set = { environment.NCCL_DEBUG = "WARN" }')
    quoted = replaced(SPEEDS, SETS, 'set = { "environment.NCCL_DEBUG" = "WARN" }')
    expected = {"environment.NCCL_DEBUG": "WARN"}
    assert parse_file(dotted, "f", shipped=True).branches[0].sets == expected
    assert parse_file(quoted, "f", shipped=True).branches[0].sets == expected


BROKEN = {
    "not toml": ("[question]", "[question", "line 3", ""),
    "no version": ("schema_version = 1\n", "", "schema_version", "schema_version = 1"),
    "future version": ("schema_version = 1", "schema_version = 2", "reads 1", ""),
    "boolean version": ("schema_version = 1", "schema_version = true", "schema_version", ""),
    "unknown table": ("[[example]]", "[[exampel]]", "exampel", "example"),
    "no question": ('[question]\nid = "speeds"', '[[branch]]\nid = "speeds"', "[question]", ""),
    "branch with one bracket": ("[[branch]]\nid = \"SA1001\"", "[branch]\nid = \"SA1001\"", "", ""),
    "bad question id": ('id = "speeds"', 'id = "Speeds!"', "id", ""),
    "question called end": ('id = "speeds"', 'id = "end"', "end", "ends the flowchart"),
    "unknown key of a question": ("entry = true", "entri = true", "entri", "entry"),
    "unknown key of a branch": ("because = \"Nobody waits.\"", "becuse = \"Nobody waits.\"", "SA1001", ""),
    "no reason": ('because = "Nobody waits."\n', "", "branch SA1001: because", ""),
    "no condition": ('when.all = ["cluster.speed_spread <= 1.1"]\n', "", "branch SA1001: when", ""),
    "condition as text": ('when.all = ["cluster.speed_spread <= 1.1"]', 'when = "cluster.speed_spread <= 1.1"',
                          "branch SA1001", ""),
    "unknown connective": ("when.all", "when.both", "both", ""),
    "text for a list": ('when.all = ["cluster.speed_spread <= 1.1"]', 'when.all = "cluster.speed_spread <= 1.1"',
                        "list of clauses", ""),
    "no clauses": ('when.all = ["cluster.speed_spread <= 1.1"]', "when.all = []", "list of clauses", ""),
    "number as clause": ('when.all = ["cluster.speed_spread <= 1.1"]', "when.all = [1]", "list of clauses", ""),
    "unreadable clause": ("<= 1.1", "=< 1.1", "branch SA1001", "<="),
    "arithmetic": ("<= 1.1", "<= 1.1 * 2", "branch SA1001", ""),
    "too many clauses": ('["cluster.speed_spread <= 1.1"]', str(["cluster.speed_spread <= 1.1"] * 25), "at most", ""),
    "list as value": (SETS, "set = { family = [1] }", "branch SA1001: set family", "fact"),
    "nested value": (SETS, "set = { family = { a = { b = 1 } } }", "branch SA1001: set family", ""),
    "bad variable": (SETS, 'set = { environment.lower = "1" }', "lower", "capitals"),
    "value with a line break": (SETS, 'set = { environment.X = "a\\nb" }', "one line", ""),
    "two anchors": ('name = "equal"', 'name = "equal"\nbefore = "SA1"\nafter = "SA2"', "before and after", ""),
    "list as fact of an example": ('"cluster.speed_spread" = 1.1', '"cluster.speed_spread" = [1]', "example", ""),
    "unquoted fact of an example": ('{ "cluster.speed_spread" = 1.1 }', "{ cluster.speed_spread = 1.1 }", "example",
                                    "in quotes"),
    "endless fact of an example": ('"cluster.speed_spread" = 1.1', '"cluster.speed_spread" = ' + "9" * 400, "finite",
                                   ""),
    "nan as value": (SETS, "set = { data_loader_workers = nan }", "finite", ""),
    "endless number as value": (SETS, "set = { data_loader_workers = " + "9" * 400 + " }", "finite", ""),
    "number too long to read": (SETS, "set = { data_loader_workers = " + "9" * 5000 + " }", "TOML", ""),
    "infinite fact of an example": ('"cluster.speed_spread" = 1.1', '"cluster.speed_spread" = inf', "finite", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_names_itself_the_place_and_what_to_write(name: str) -> None:
    old, new, part, hint = BROKEN[name]
    with pytest.raises(RuleError) as caught:
        parse_file(replaced(SPEEDS, old, new), "mine/10_speeds.toml", shipped=True)
    assert caught.value.message.startswith("mine/10_speeds.toml")
    assert part in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.message


def test_an_overlays_branch_must_not_take_a_shipped_id() -> None:
    with pytest.raises(RuleError, match="belong to the shipped rules"):
        parse_file(SPEEDS, "mine.toml", shipped=False)
    parse_file(replaced(SPEEDS, "SA10", "MY10", 9), "mine.toml", shipped=False)


def test_files_of_an_overlay_are_read_and_everything_else_in_it_left_alone(tmp_path: Path) -> None:
    rules = tmp_path / "mine" / "rules"
    rules.mkdir(parents=True)
    (rules / "README.md").write_text("not a rule")
    (rules / "10_mine.toml").write_text(
        replaced(
            replaced(SPEEDS, "SA10", "MY10", 9),
            'id = "speeds"\nask = "Are they equal?"\nentry = true',
            'id = "mine"\nask = "Mine?"',
        )
    )
    ruleset = load_ruleset((tmp_path / "mine",))
    assert ruleset.questions["mine"].file == str(rules / "10_mine.toml")
    assert not ruleset.questions["mine"].shipped
    assert ruleset.overlays == (str(tmp_path / "mine"),)
    assert ruleset.digest != load_ruleset().digest


def test_an_overlay_without_rules_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    assert load_ruleset((tmp_path,)).digest == load_ruleset().digest


def test_an_overlay_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="not a directory"):
        load_ruleset((tmp_path / "absent",))
    (tmp_path / "10_mine.toml").write_text(SPEEDS)
    with pytest.raises(RuleError) as caught:
        load_ruleset((tmp_path,))
    assert "rules/" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"\xff\xfe\x00", "UTF-8"),
        (b"# " + b"x" * (load.MAX_FILE_BYTES + 1), "KiB"),
        (b"a = " + b"[" * 50_000 + b"]" * 50_000, "TOML"),
        (b"schema_version = 1\n" + b"[[branch]]\n" * 1000, "question"),
    ],
)
def test_files_beyond_all_limits_are_one_sentence(tmp_path: Path, data: bytes, part: str) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "10_mine.toml").write_bytes(data)
    with pytest.raises(RuleError) as caught:
        load_ruleset((tmp_path,))
    assert part in caught.value.message
    assert "10_mine.toml" in caught.value.message


def test_a_folder_named_like_a_rule_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rules" / "10_mine.toml").mkdir(parents=True)
    with pytest.raises(RuleError, match="is not a file"):
        load_ruleset((tmp_path,))


def test_a_pipe_named_like_a_rule_file_does_not_make_anybody_wait(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    os.mkfifo(tmp_path / "rules" / "10_mine.toml")
    with pytest.raises(RuleError, match="is not a file"):
        load_ruleset((tmp_path,))


LINES = SPEEDS.splitlines()


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(LINES) - 1),
            st.one_of(
                st.sampled_from(
                    ["", "[", "]]", "[[branch]]", "when = 3", 'when = "x"', "set = []", "facts = 1", "a = nan"]
                ),
                st.text(max_size=20),
                st.sampled_from(LINES),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_garbled_files_are_read_or_refused_in_one_sentence(changes: list[tuple[int, str]]) -> None:
    lines = list(LINES)
    for position, line in changes:
        lines[position] = line
    try:
        parse_file("\n".join(lines), "garbled.toml", shipped=True)
    except RuleError as error:
        assert error.message.startswith("garbled.toml")


JSON_LIKE = st.recursive(
    st.one_of(st.booleans(), st.integers(-5, 5), st.floats(allow_nan=True), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["id", "all", "when", "fact", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["schema_version", "question", "branch", "example", "x"]), JSON_LIKE))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_any_toml_value_in_any_place_is_refused_in_one_sentence(data: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # past the TOML parser: values of every type in every place
        patch.setattr(load, "_toml", lambda _text, _file: {"schema_version": 1, **data})
        with pytest.raises(RuleError) as caught:
            parse_file("", "odd.toml", shipped=True)
    assert caught.value.message.startswith("odd.toml")
