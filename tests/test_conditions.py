from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor.conditions import (
    ClauseError,
    Condition,
    check_clause,
    evaluate,
    evaluate_clause,
    every,
    literal,
    negate,
    parse_clause,
    some,
    value_text,
)
from stratadvisor.schema.facts import Fact, FactSpec, FactValue

SPECS = {
    s.name: s
    for s in (
        FactSpec(name="a.ratio", type="number", unit="ratio", description="a ratio"),
        FactSpec(name="a.fraction", type="number", unit="fraction", description="a fraction"),
        FactSpec(name="a.count", type="number", unit="count", description="a count"),
        FactSpec(name="a.bytes", type="number", unit="bytes", description="bytes"),
        FactSpec(name="b.bytes", type="number", unit="bytes", description="bytes"),
        FactSpec(name="a.rate", type="number", unit="bytes_per_second", description="a rate"),
        FactSpec(name="a.seconds", type="number", unit="seconds", description="seconds"),
        FactSpec(name="a.flag", type="boolean", description="a flag"),
        FactSpec(name="a.word", type="text", description="a word"),
    )
}


def facts(**values: FactValue) -> dict[str, Fact]:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return {n: Fact(name=n, value=v, origin="unknown" if v is None else "measured") for n, v in named.items()}


def outcome(text: str, **values: FactValue) -> bool | None:
    clause = parse_clause(text)
    check_clause(clause, SPECS)
    return evaluate_clause(clause, facts(**values), SPECS).outcome


@pytest.mark.parametrize(
    ("operator", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        ("==", False, True, False),
        ("!=", True, False, True),
        (">=", False, True, True),
        (">", False, False, True),
    ],
)
def test_every_operator_below_at_and_above_the_value(operator: str, below: bool, equal: bool, above: bool) -> None:
    assert [outcome(f"a.ratio {operator} 2", a__ratio=v) for v in (1.0, 2.0, 3.0)] == [below, equal, above]


@pytest.mark.parametrize("operator", ["<", "<=", "==", "!=", ">=", ">"])
def test_a_missing_or_unknown_fact_makes_every_operator_unknown(operator: str) -> None:
    assert outcome(f"a.ratio {operator} 2") is None
    assert outcome(f"a.ratio {operator} 2", a__ratio=None) is None


VALUES = (True, False, None)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(VALUES, VALUES)))
def test_truth_tables_of_and_or_not(left: bool | None, right: bool | None) -> None:
    # Kleene's strong logic: order the values false < unknown < true; and is the minimum, or the maximum
    rank = {False: 0, None: 1, True: 2}
    back = {0: False, 1: None, 2: True}
    assert every([left, right]) is back[min(rank[left], rank[right])]
    assert some([left, right]) is back[max(rank[left], rank[right])]
    assert negate(left) is back[2 - rank[left]]


def test_and_of_nothing_is_true_and_or_of_nothing_is_false() -> None:
    assert every([]) is True
    assert some([]) is False


@pytest.mark.parametrize(("all_of", "any_of", "none_of"), list(itertools.product(VALUES, (*VALUES, "absent"), VALUES)))
def test_a_condition_joins_its_three_lists_with_and(
    all_of: bool | None, any_of: bool | str | None, none_of: bool | None
) -> None:
    specs = {n: FactSpec(name=n, type="boolean", description=n) for n in ("x.one", "x.two", "x.three")}
    known = {
        n: Fact(name=n, value=v, origin="unknown" if v is None else "measured")
        for n, v in (("x.one", all_of), ("x.two", any_of), ("x.three", none_of))
        if v != "absent"
    }
    condition = Condition(
        all_of=(parse_clause("x.one == true"),),
        any_of=() if any_of == "absent" else (parse_clause("x.two == true"),),
        none_of=(parse_clause("x.three == true"),),
    )
    parts = [all_of, None if none_of is None else not none_of, *([] if any_of == "absent" else [any_of])]
    expected = False if False in parts else None if None in parts else True
    verdict = evaluate(condition, known, specs)
    assert verdict.outcome is expected
    assert len(verdict.results) == len(condition.clauses)


@pytest.mark.parametrize(
    ("clause", "value", "expected"),
    [
        ("a.bytes >= 80GB", 80e9, True),
        ("a.bytes >= 80GB", 80e9 - 1, False),
        ("a.bytes < 64MiB", 64 * 1024**2 - 1, True),
        ("a.rate <= 100Gb/s", 100e9 / 8, True),
        ("a.rate <= 100Gb/s", 100e9 / 8 + 1, False),
        ("a.rate < 100 GB/s", 100e9 / 8, True),
        ("a.seconds > 2ms", 0.0021, True),
        ("a.count <= 7B", 7e9, True),
        ("a.count <= 7", 8, False),
        ("a.fraction <= 5%", 0.05, True),
        ("a.fraction <= 5 %", 0.0501, False),
    ],
)
def test_quantities_are_compared_in_the_facts_unit(clause: str, value: float, expected: bool) -> None:
    name = clause.split(maxsplit=1)[0].replace(".", "__")
    assert outcome(clause, **{name: value}) is expected


def test_texts_booleans_and_lists() -> None:
    assert outcome("a.word == 'nccl'", a__word="nccl") is True
    assert outcome('a.word != "nccl"', a__word="gloo") is True
    assert outcome("a.word in ['nccl', 'gloo']", a__word="gloo") is True
    assert outcome("a.word in ['nccl', 'gloo']", a__word="mpi") is False
    assert outcome("a.count in [2, 4, 8]", a__count=4) is True
    assert outcome("a.flag == true", a__flag=False) is False
    assert outcome("a.flag == false", a__flag=None) is None


def test_two_facts_are_compared_and_the_trace_shows_both_values() -> None:
    assert outcome("a.bytes <= b.bytes", a__bytes=1.0, b__bytes=2.0) is True
    assert outcome("a.bytes <= b.bytes", a__bytes=1.0) is None
    assert outcome("a.ratio <= a.fraction", a__ratio=0.5, a__fraction=0.25) is False
    clause = parse_clause("a.bytes <= b.bytes")
    result = evaluate_clause(clause, facts(a__bytes=3 * 1024**3, b__bytes=2 * 1024**3), SPECS)
    assert (result.actual_text, result.expected, result.outcome) == ("3 GiB", "b.bytes (2 GiB)", False)
    assert result.origin == "measured"


@pytest.mark.parametrize(
    ("clause", "part", "hint"),
    [
        ("a.rate <= 25", "25", "25GB/s"),
        ("a.rate <= 25GB", "a.rate", ""),
        ("a.bytes <= 25GB/s", "a.bytes", ""),
        ("a.bytes <= 80Gb", "a.bytes", ""),
        ("a.ratio <= 25GB", "a.ratio", ""),
        ("a.ratio <= 5%", "a.ratio", ""),
        ("a.ratio <= 'two'", "number", ""),
        ("a.ratio == true", "number", ""),
        ("a.flag == 1", "boolean", "true and false"),
        ("a.flag <= true", "boolean", "== or !="),
        ("a.word > 'b'", "text", "== or !="),
        ("a.word == 3", "text", "quotes"),
        ("a.ratoi <= 1", "a.ratoi", "a.ratio"),
        ("a.bytes <= a.rate", "cannot be compared", ""),
        ("a.flag == a.word", "cannot be compared", ""),
        ("a.count in ['x']", "number", ""),
        ("a.ratio <= b.ratoi", "b.ratoi", "a.ratio"),
    ],
)
def test_a_clause_that_does_not_fit_its_fact_is_refused(clause: str, part: str, hint: str) -> None:
    with pytest.raises(ClauseError) as caught:
        check_clause(parse_clause(clause), SPECS)
    assert part in str(caught.value)
    assert hint in caught.value.hint + str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.ratio",
        "a.ratio <=",
        "ratio <= 1",
        "A.ratio <= 1",
        "a.ratio = 1",
        "a.ratio <> 1",
        "a.ratio <= 1 and a.count <= 2",
        "a.ratio <= __import__('os')",
        "a.ratio * 2 <= 1",
        "a.word == nccl",
        "a.word in 'nccl'",
        "a.word == ['nccl']",
        "a.word in []",
        "a.word in [a.flag]",
        "a.word in ['a',,'b']",
        "a.ratio <= 1e999",
        "a.ratio <= nan",
        "a.ratio <= " + "1" * 300,
    ],
)
def test_a_text_that_is_no_comparison_is_refused(text: str) -> None:
    with pytest.raises(ClauseError):
        check_clause(parse_clause(text), SPECS)


def test_an_unquoted_word_gets_the_hint_to_quote_it() -> None:
    with pytest.raises(ClauseError) as caught:
        parse_clause("a.word == nccl")
    assert caught.value.hint == "write 'nccl' in quotes"


PIECES = st.sampled_from(
    [
        "a.ratio",
        "b.bytes",
        "<=",
        "==",
        "!=",
        ">",
        "in",
        "1",
        "-2.5e3",
        "80GB",
        "5 %",
        "true",
        "'x'",
        "[1, 2]",
        " ",
        "'",
        ",",
    ]
)


@given(st.one_of(st.text(max_size=300), st.lists(PIECES, min_size=3, max_size=5).map(" ".join)))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_any_text_is_a_clause_or_a_clause_error(text: str) -> None:
    try:
        clause = parse_clause(text)
    except ClauseError:
        return
    assert parse_clause(clause.text) == clause


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_orderings_agree_with_the_numbers(actual: float, expected: float) -> None:
    result = outcome(f"a.ratio <= {expected!r}", a__ratio=actual)
    assert result is (actual <= expected)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, "bytes", "unknown"),
        (True, "", "yes"),
        (False, "", "no"),
        ("nccl", "", "nccl"),
        (0.3125, "fraction", "0.312"),
        (12.5e9, "bytes_per_second", "12.5 GB/s"),
        (7e9, "count", "7B"),
        (0.002, "seconds", "2 ms"),
    ],
)
def test_values_are_shown_with_their_unit(value: FactValue, unit: str, expected: str) -> None:
    assert value_text(value, unit) == expected


def test_literals_of_examples_take_the_facts_unit() -> None:
    assert literal("25GB/s", SPECS["a.rate"]) == 25e9
    assert literal(7, SPECS["a.count"]) == 7.0
    assert literal("word", SPECS["a.word"]) == "word"
    assert literal(True, SPECS["a.flag"]) is True
    for value, name in ((25, "a.rate"), ("x", "a.count"), (1, "a.flag"), (True, "a.count"), ([], "a.word")):
        with pytest.raises(ClauseError):
            literal(value, SPECS[name])


def test_what_is_true_has_no_clause_that_decided_against_it() -> None:
    condition = Condition((parse_clause("a.ratio <= 2"), parse_clause("a.fraction <= 0.5")))
    for fraction, decided in ((0.5, None), (0.6, "a.fraction <= 0.5")):
        known = {
            "a.ratio": Fact(name="a.ratio", value=1.0, origin="measured"),
            "a.fraction": Fact(name="a.fraction", value=fraction, origin="measured"),
        }
        found = evaluate(condition, known, SPECS).deciding
        assert (f"{found.fact} {found.operator} {found.expected}" if found else None) == decided


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_an_examples_fact_is_finite(value: float) -> None:
    with pytest.raises(ClauseError, match="is not a finite number"):
        literal(value, SPECS["a.ratio"])
