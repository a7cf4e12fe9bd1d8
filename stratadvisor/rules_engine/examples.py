"""Run the examples inside rule files: with these facts, does the question take that branch?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stratadvisor.conditions import ClauseError, literal, spec_of
from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.model import Example, Question, RuleSet, with_chosen
from stratadvisor.rules_engine.walk import take
from stratadvisor.schema.facts import Fact, FactSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleResult:
    """What one example came to."""

    question: str
    example: Example
    took: str
    status: Literal["passed", "failed", "overridden"]
    """overridden: an example of a lower layer that now takes a branch of an overlay, as the overlay wants."""

    @property
    def name(self) -> str:
        """``SA3001[2]``: the branch expected and the example's position in its file."""
        return f"{self.example.takes}[{self.example.number}]"


def facts_of(example: Example, specs: Mapping[str, FactSpec]) -> dict[str, Fact]:
    """Return an example's facts; all others are unknown.

    Raises:
        ClauseError: a fact that does not exist, or a value of another type or unit.

    """
    facts: dict[str, Fact] = {}
    for name, value in example.facts.items():
        facts[name] = Fact(name=name, value=literal(value, spec_of(name, specs)), origin="declared")
    return facts


def run_example(question: Question, example: Example, specs: Mapping[str, FactSpec]) -> ExampleResult:
    """Return which branch an example takes.

    Raises:
        RuleError: the example names a fact that does not exist or gives it a value of the wrong kind.

    """
    all_specs = with_chosen(specs)
    try:
        facts = facts_of(example, all_specs)
    except ClauseError as problem:
        raise RuleError(f"{example.file}: example {example.number}: {problem}", hint=problem.hint) from None
    branch = take(question, facts, all_specs).branch
    status: Literal["passed", "failed", "overridden"] = "passed" if branch.id == example.takes else "failed"
    if status == "failed" and example.shipped and not branch.shipped:
        status = "overridden"
    return ExampleResult(question=question.id, example=example, took=branch.id, status=status)


def run_examples(ruleset: RuleSet, specs: Mapping[str, FactSpec]) -> tuple[ExampleResult, ...]:
    """Return the result of every example of the flowchart."""
    return tuple(
        run_example(question, example, specs)
        for question in ruleset.questions.values()
        for example in question.examples
    )
