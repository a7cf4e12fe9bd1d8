"""Clauses and conditions: comparisons of named facts, with three outcomes (true, false, unknown).

A clause is one line of text, ``sync.exposed_communication_fraction <= 0.05``: a fact, an operator, and a number, a
quantity with a unit, a quoted text, true or false, a list, or another fact. There are no expressions and no eval: if a
rule seems to need arithmetic, a fact is missing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from stratadvisor.schema.facts import Fact, FactSpec, FactValue
from stratadvisor.schema.plan import ClauseResult
from stratadvisor.units import (
    format_bytes,
    format_count,
    format_flops,
    format_rate,
    format_seconds,
    parse_quantity,
)

MAX_CLAUSE_CHARACTERS = 240
MAX_LIST_ITEMS = 32
LARGEST_NUMBER = 1e300
ORDERINGS = ("<=", ">=", "<", ">")
OPERATORS = (*ORDERINGS, "==", "!=", "in")
DIMENSIONS = ("bytes", "bytes_per_second", "seconds", "flops_per_second")
"""Units in which a bare number is refused: GB/s and Gb/s differ by eight."""
PLAIN_UNITS = ("", "fraction", "ratio")
"""Numbers without a dimension, comparable with each other."""

Atom = bool | float | str
OperandKind = Literal["number", "percent", "quantity", "boolean", "text", "fact", "list"]

_FACT = r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+"
_CLAUSE = re.compile(rf"\s*({_FACT})\s*(<=|>=|==|!=|<|>|in\b)\s*(\S.*?)\s*")
_FACT_NAME = re.compile(_FACT)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_QUANTITY = re.compile(r"[0-9.][0-9_,.]*(?:[eE][+-]?[0-9]{1,3})?\s*[A-Za-z\u00b5]+(?:/[a-z]+)?")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


class ClauseError(ValueError):
    """A clause that cannot be read, or does not fit the fact it names."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Operand:
    """The right-hand side, before the fact's unit is known."""

    kind: OperandKind
    value: Atom | tuple[Operand, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison, as written."""

    fact: str
    operator: str
    right: Operand

    @property
    def text(self) -> str:
        """The clause in one spelling."""
        return f"{self.fact} {self.operator} {self.right.text}"


@dataclass(frozen=True, slots=True)
class Condition:
    """All of ``all_of``, at least one of ``any_of`` (where there are any) and none of ``none_of``."""

    all_of: tuple[Clause, ...] = ()
    any_of: tuple[Clause, ...] = ()
    none_of: tuple[Clause, ...] = ()

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Every clause, in the order of evaluation."""
        return self.all_of + self.any_of + self.none_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a condition, with the evidence in the order of its three lists."""

    outcome: bool | None
    all_of: tuple[ClauseResult, ...]
    any_of: tuple[ClauseResult, ...]
    none_of: tuple[ClauseResult, ...]

    @property
    def results(self) -> tuple[ClauseResult, ...]:
        """Every clause's result."""
        return self.all_of + self.any_of + self.none_of

    @property
    def deciding(self) -> ClauseResult | None:
        """The first clause that made the condition false, or that left it undecided; None where it is true."""
        if self.outcome is True:
            return None
        wanted = self.outcome
        of_any = self.any_of if some(r.outcome for r in self.any_of) is wanted else ()
        against = [
            *(r for r in self.all_of if r.outcome is wanted),
            *(r for r in self.none_of if negate(r.outcome) is wanted),
            *(r for r in of_any if r.outcome is wanted),
        ]
        return against[0]


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the nearest right spelling, or an empty text when nothing is near."""
    near = difflib.get_close_matches(name, tuple(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def finite(value: float) -> bool:
    """Whether a number of a rule file can be computed with; TOML knows nan, inf and integers of any length."""
    return abs(value) <= LARGEST_NUMBER  # false for nan


def _finite(text: str) -> float:
    value = float(text)
    if not finite(value):
        raise ClauseError(f"{text} is too large a number")
    return value


def _atom(text: str) -> Operand | None:
    """Return a literal that stands alone, or None when the text is none."""
    if text in ("true", "false"):
        return Operand("boolean", text == "true", text)
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0] and text[0] not in text[1:-1]:
        return Operand("text", text[1:-1], text)
    if _NUMBER.fullmatch(text):
        return Operand("number", _finite(text), text)
    if match := _PERCENT.fullmatch(text):
        return Operand("percent", _finite(match.group(1)) / 100, text)
    return Operand("quantity", text, text) if _QUANTITY.fullmatch(text) else None


def _operand(text: str) -> Operand:
    if text.startswith("[") and text.endswith("]"):
        parts = [part.strip() for part in text[1:-1].split(",")]
        items = tuple(item for item in map(_atom, parts) if item is not None)
        if len(items) != len(parts) or len(parts) > MAX_LIST_ITEMS:
            raise ClauseError(f"{text!r} is not a list of 1 to {MAX_LIST_ITEMS} values", "write ['fp16', 'bf16']")
        return Operand("list", items, text)
    if _FACT_NAME.fullmatch(text):
        return Operand("fact", text, text)
    atom = _atom(text)
    if atom is None:
        raise ClauseError(f"{text!r} is no number, quantity, fact or quoted text", f"write '{text}' in quotes")
    return atom


def parse_clause(text: str) -> Clause:
    """Return the clause that ``text`` states.

    Raises:
        ClauseError: it is not ``fact operator value``.

    """
    if len(text) > MAX_CLAUSE_CHARACTERS:
        raise ClauseError(f"a clause has at most {MAX_CLAUSE_CHARACTERS} characters, this one has {len(text)}")
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise ClauseError(
            f"{text!r} is not a comparison",
            f"write 'fact operator value' with one of {' '.join(OPERATORS)}, as in 'cluster.speed_spread <= 1.1'",
        )
    fact, operator, right = match.groups()
    operand = _operand(right)
    if (operator == "in") != (operand.kind == "list"):
        raise ClauseError(f"{text!r}: 'in' takes a list, the other operators take one value", "write x in ['a', 'b']")
    return Clause(fact, operator, operand)


def spec_of(name: str, specs: Mapping[str, FactSpec]) -> FactSpec:
    """Return the declaration of a fact.

    Raises:
        ClauseError: there is no such fact; the hint has the nearest one.

    """
    if name not in specs:
        raise ClauseError(f"there is no fact {name}", closest(name, specs))
    return specs[name]


def _as_number(operand: Operand, spec: FactSpec) -> float:
    """Return a number, percentage or quantity in the fact's unit."""
    dimensional = spec.unit in DIMENSIONS
    if operand.kind == "percent" and spec.unit == "fraction":
        return float(operand.value)  # type: ignore[arg-type]  # a percent operand holds a float
    if operand.kind == "number" and not dimensional:
        return float(operand.value)  # type: ignore[arg-type]  # a number operand holds a float
    if operand.kind in ("quantity", "number") and (dimensional or spec.unit == "count"):
        try:
            return parse_quantity(operand.text, spec.unit)  # type: ignore[arg-type]  # one of the dimensions
        except ValueError as problem:
            raise ClauseError(f"{spec.name} is in {spec.unit}: {problem}") from None
    what = spec.unit if spec.unit else "a plain number"
    raise ClauseError(f"{spec.name} is {what}, and {operand.text} is not", f"{spec.name}: {spec.description}")


def value_for(operand: Operand, spec: FactSpec) -> Atom:
    """Return a literal operand as a value of the fact's type and unit.

    Raises:
        ClauseError: wrong type or wrong unit.

    """
    if spec.type == "number":
        if operand.kind in ("boolean", "text", "fact", "list"):
            raise ClauseError(f"{spec.name} is a number, {operand.text} is not")
        return _as_number(operand, spec)
    if operand.kind != spec.type:
        raise ClauseError(
            f"{spec.name} is a {spec.type}, {operand.text} is not",
            "booleans are true and false; texts stand in quotes",
        )
    return operand.value  # type: ignore[return-value]  # boolean or text operands hold one


def literal(value: object, spec: FactSpec) -> FactValue:
    """Return a value of a rule file (an example's fact) in the fact's type and unit; texts may be quantities.

    Raises:
        ClauseError: wrong type or wrong unit.

    """
    if isinstance(value, bool):
        return value_for(Operand("boolean", value, str(value).lower()), spec)
    if isinstance(value, (int, float)):
        if not finite(value):
            raise ClauseError(f"{spec.name} = {value} is not a finite number")
        return value_for(Operand("number", float(value), str(value)), spec)
    if isinstance(value, str):
        if spec.type == "number":
            operand = _operand(value.strip() or "''")
            return value_for(operand, spec)
        return value_for(Operand("text", value, repr(value)), spec)
    raise ClauseError(f"{spec.name} cannot be a {type(value).__name__}")


def check_clause(clause: Clause, specs: Mapping[str, FactSpec]) -> None:
    """Prove that a clause fits the facts it names.

    Raises:
        ClauseError: unknown fact, wrong type, wrong unit, or an ordering of things that have none.

    """
    spec = spec_of(clause.fact, specs)
    if clause.operator in ORDERINGS and spec.type != "number":
        raise ClauseError(f"{clause.fact} is a {spec.type}; {clause.operator} compares numbers", "use == or !=")
    if clause.right.kind == "fact":
        other = spec_of(str(clause.right.value), specs)
        same_unit = other.unit == spec.unit or (other.unit in PLAIN_UNITS and spec.unit in PLAIN_UNITS)
        if other.type != spec.type or not same_unit:
            kinds = spec.unit or spec.type, other.unit or other.type
            raise ClauseError(f"{spec.name} ({kinds[0]}) cannot be compared with {other.name} ({kinds[1]})")
        return
    for operand in clause.right.value if isinstance(clause.right.value, tuple) else (clause.right,):
        value_for(operand, spec)


def value_text(value: FactValue, unit: str) -> str:
    """Return a fact's value for people, with its unit."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    formats = {
        "bytes": format_bytes,
        "bytes_per_second": format_rate,
        "seconds": format_seconds,
        "flops_per_second": format_flops,
        "count": format_count,
    }
    return formats[unit](value) if unit in formats else f"{value:.3g}"


def _compare(actual: Atom, operator: str, expected: Atom | tuple[Atom, ...]) -> bool:
    if isinstance(expected, tuple):
        return actual in expected
    if operator == "==":
        return actual == expected
    if operator == "!=":
        return actual != expected
    left, right = float(actual), float(expected)  # orderings are for numbers only: check_clause
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]


def evaluate_clause(clause: Clause, facts: Mapping[str, Fact], specs: Mapping[str, FactSpec]) -> ClauseResult:
    """Return the outcome of a clause that ``check_clause`` accepts; None when a fact it needs is unknown."""
    spec = spec_of(clause.fact, specs)
    fact = facts.get(clause.fact)
    actual = None if fact is None else fact.value
    expected: Atom | tuple[Atom, ...] | None
    written = clause.right.text
    if clause.right.kind == "fact":
        other = facts.get(str(clause.right.value))
        expected = None if other is None else other.value
        written = f"{clause.right.text} ({value_text(expected, specs[str(clause.right.value)].unit)})"
    elif isinstance(clause.right.value, tuple):
        expected = tuple(value_for(operand, spec) for operand in clause.right.value)
    else:
        expected = value_for(clause.right, spec)
    outcome = None if actual is None or expected is None else _compare(actual, clause.operator, expected)
    return ClauseResult(
        fact=clause.fact,
        operator=clause.operator,
        expected=written,
        actual=actual,
        actual_text=value_text(actual, spec.unit),
        origin="unknown" if fact is None or actual is None else fact.origin,
        outcome=outcome,
    )


def every(outcomes: Iterable[bool | None]) -> bool | None:
    """Three-valued and: false if any is false, else unknown if any is unknown, else true."""
    seen = tuple(outcomes)
    return False if False in seen else None if None in seen else True


def some(outcomes: Iterable[bool | None]) -> bool | None:
    """Three-valued or: true if any is true, else unknown if any is unknown, else false."""
    seen = tuple(outcomes)
    return True if True in seen else None if None in seen else False


def negate(outcome: bool | None) -> bool | None:
    """Three-valued not."""
    return None if outcome is None else not outcome


def evaluate(condition: Condition, facts: Mapping[str, Fact], specs: Mapping[str, FactSpec]) -> Verdict:
    """Return the outcome of a condition with every clause's result."""

    def results(clauses: tuple[Clause, ...]) -> tuple[ClauseResult, ...]:
        return tuple(evaluate_clause(clause, facts, specs) for clause in clauses)

    of_all, of_any, of_none = results(condition.all_of), results(condition.any_of), results(condition.none_of)
    parts = [every(r.outcome for r in of_all), negate(some(r.outcome for r in of_none))]
    if of_any:
        parts.append(some(r.outcome for r in of_any))
    return Verdict(every(parts), of_all, of_any, of_none)
