"""Walk the flowchart: which branch each question takes with these facts, why, and what that sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratadvisor.conditions import ClauseError, Verdict, evaluate
from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.model import CHOSEN_PREFIX, END, Branch, FromFact, Question, RuleSet, with_chosen
from stratadvisor.schema.facts import Fact, FactSpec
from stratadvisor.schema.plan import ClauseResult, Decision
from stratadvisor.schema.rules import ENVIRONMENT_PREFIX, SETTABLE, RuleOutcome, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The branch a question takes, its evidence, and what was tried before."""

    branch: Branch
    clauses: tuple[ClauseResult, ...]
    passed_over: tuple[str, ...]


def walk(ruleset: RuleSet, facts: Mapping[str, Fact], specs: Mapping[str, FactSpec]) -> RuleOutcome:
    """Return the path through the flowchart and everything it sets; a later branch wins over an earlier one.

    Raises:
        RuleError: the flowchart has a fault that ``check`` names.

    """
    question = ruleset.entry
    if question is None:
        raise RuleError("the rules have no first question", hint="one question says entry = true")
    known = dict(facts)
    all_specs = with_chosen(specs)
    settings: dict[str, Scalar] = {}
    decisions: list[Decision] = []
    warnings: list[str] = []
    visited: set[str] = set()
    while question is not None:
        if question.id in visited:
            raise RuleError(f"{question.file}: the question {question.id} leads back to itself")
        visited.add(question.id)
        taken = take(question, known, all_specs)
        sets = _settings(taken.branch, known, warnings)
        settings.update(sets)
        for key in SETTABLE.keys() & sets.keys():
            name = f"{CHOSEN_PREFIX}{key}"
            known[name] = Fact(name=name, value=sets[key], origin="estimated", because=f"set by {taken.branch.id}")
        if taken.branch.warn:
            warnings.append(taken.branch.warn)
        decisions.append(_decision(question, taken, sets))
        following = question.next_of(taken.branch)
        if following is None:
            raise RuleError(f"{question.file}: branch {taken.branch.id} does not say what comes next")
        if following != END and following not in ruleset.questions:
            raise RuleError(f"{question.file}: branch {taken.branch.id} leads to {following}, which no file asks")
        question = None if following == END else ruleset.questions[following]
    return RuleOutcome(
        decisions=tuple(decisions), settings=settings, warnings=tuple(warnings), ruleset_digest=ruleset.digest
    )


def take(question: Question, facts: Mapping[str, Fact], specs: Mapping[str, FactSpec]) -> Taken:
    """Return the branch that a question takes; ``specs`` includes the chosen ones.

    The first true branch; at the first undecided one the branch for unknown facts; after the last false one the
    branch for everything else.
    """
    passed: list[str] = []
    for branch in question.conditional:
        try:
            verdict = evaluate(branch.condition, facts, specs)
        except ClauseError as problem:
            raise RuleError(f"{branch.file}: branch {branch.id}: {problem}", hint=problem.hint) from None
        if verdict.outcome is True:
            return Taken(branch=branch, clauses=verdict.results, passed_over=tuple(passed))
        passed.append(f"{branch.id}: {_why_not(verdict, facts)}")
        if verdict.outcome is None:
            return Taken(
                branch=_fallback(question, "unknown"),
                clauses=tuple(r for r in verdict.results if r.outcome is None),
                passed_over=tuple(passed),
            )
    return Taken(branch=_fallback(question, "otherwise"), clauses=(), passed_over=tuple(passed))


def _fallback(question: Question, kind: str) -> Branch:
    branch = question.fallback("unknown" if kind == "unknown" else "otherwise")
    if branch is None:
        raise RuleError(f'{question.file}: the question {question.id} has no branch with when = "{kind}"')
    return branch


def _why_not(verdict: Verdict, facts: Mapping[str, Fact]) -> str:
    """Return the clause that decided against a branch, with the actual value."""
    result = verdict.deciding
    assert result is not None  # the condition is not true
    clause = f"{result.fact} {result.operator} {result.expected}"
    if result.outcome is not None:
        return f"{clause} is {str(result.outcome).lower()} ({result.actual_text})"
    fact = facts.get(result.fact)
    reason = fact.because if fact is not None and fact.value is None else ""
    return f"{clause} is not decided" + (f" ({reason})" if reason else "")


def _settings(branch: Branch, facts: Mapping[str, Fact], warnings: list[str]) -> dict[str, Scalar]:
    settings: dict[str, Scalar] = {}
    for key, setting in branch.sets.items():
        if not isinstance(setting, FromFact):
            settings[key] = setting
            continue
        fact = facts.get(setting.fact)
        if fact is None or fact.value is None:
            reason = f": {fact.because}" if fact is not None and fact.because else ""
            warnings.append(f"{key} is not set, since {setting.fact} is unknown{reason}")
        else:
            settings[key] = _whole(fact.value)
            _, allowed = SETTABLE.get(key, ("text", ()))
            if allowed and settings[key] not in allowed:
                raise RuleError(
                    f"{branch.file}: branch {branch.id} sets {key} to {settings[key]!r}, the value of {setting.fact}",
                    hint=f"{key} is one of {', '.join(allowed)}",
                )
    return {key: _as_text(value) if key.startswith(ENVIRONMENT_PREFIX) else value for key, value in settings.items()}


def _whole(value: float | bool | str) -> Scalar:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _as_text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def _decision(question: Question, taken: Taken, sets: dict[str, Scalar]) -> Decision:
    branch = taken.branch
    return Decision(
        question=question.id,
        ask=question.ask,
        branch=branch.id,
        name=branch.name,
        because=branch.because,
        clauses=taken.clauses,
        passed_over=taken.passed_over,
        sets=sets,
        source_file=branch.file,
        sources=branch.sources,
    )
