"""Static faults of a flowchart, each with file, branch and the nearest right spelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stratadvisor.conditions import ClauseError, check_clause, closest, spec_of
from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.examples import facts_of
from stratadvisor.rules_engine.model import END, Branch, FromFact, Question, RuleSet, with_chosen
from stratadvisor.schema.facts import FactSpec
from stratadvisor.schema.rules import ENVIRONMENT_PREFIX, SETTABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault."""

    kind: str
    file: str
    line: int
    branch: str
    """Empty where a whole question is at fault."""
    message: str
    hint: str = ""

    @property
    def text(self) -> str:
        """File, line, branch and what is wrong."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {f'branch {self.branch}: ' if self.branch else ''}{self.message}"


def check(ruleset: RuleSet, specs: Mapping[str, FactSpec]) -> None:
    """Prove that a flowchart has no static fault.

    Raises:
        RuleError: the first fault, and how many more there are.

    """
    found = problems(ruleset, specs)
    if found:
        more = f" (and {len(found) - 1} more: stratadvisor rules check lists them)" if len(found) > 1 else ""
        raise RuleError(found[0].text + more, hint=found[0].hint)


def problems(ruleset: RuleSet, specs: Mapping[str, FactSpec]) -> tuple[Problem, ...]:
    """Return every static fault."""
    all_specs = with_chosen(specs)
    found: list[Problem] = [*_entries(ruleset), *_duplicates(ruleset)]
    for question in ruleset.questions.values():
        found += _fallbacks(question)
        for branch in question.branches:
            found += _clauses(branch, all_specs)
            found += _sets(branch, all_specs)
            found += _evidence(question, branch)
            found += _next(ruleset, question, branch)
        found += _examples(question, all_specs)
    if not any(p.kind in ("entry", "next") for p in found):
        found += _paths(ruleset)
    return tuple(found)


def _at(question: Question, kind: str, message: str, hint: str = "") -> Problem:
    return Problem(kind=kind, file=question.file, line=0, branch="", message=message, hint=hint)


def _in(branch: Branch, kind: str, message: str, hint: str = "") -> Problem:
    return Problem(kind=kind, file=branch.file, line=branch.line, branch=branch.id, message=message, hint=hint)


def _entries(ruleset: RuleSet) -> Iterator[Problem]:
    entries = [q for q in ruleset.questions.values() if q.entry]
    if not entries:
        first = next(iter(ruleset.questions.values()), None)
        yield Problem(
            kind="entry",
            file=first.file if first else "rules/",
            line=0,
            branch="",
            message="no question is the first one",
            hint="one question says entry = true",
        )
    for question in entries[1:]:
        yield _at(question, "entry", f"{question.id} says entry = true, and so does {entries[0].id}")


def _duplicates(ruleset: RuleSet) -> Iterator[Problem]:
    seen: dict[str, Branch] = {}
    for question in ruleset.questions.values():
        for branch in question.branches:
            if branch.id in seen:
                yield _in(branch, "duplicate", f"the id is already taken by a branch in {seen[branch.id].file}")
            seen.setdefault(branch.id, branch)


def _fallbacks(question: Question) -> Iterator[Problem]:
    if not question.ask:
        yield _at(question, "ask", f"the question {question.id} has no text", 'write ask = "...?" under [question]')
    for kind in ("otherwise", "unknown"):
        found = [b for b in question.branches if b.kind == kind]
        if not found:
            yield _at(
                question,
                kind,
                f'the question {question.id} has no branch with when = "{kind}"',
                "every question says where unknown facts lead, and where nothing else holds",
            )
        for branch in found[1:]:
            yield _in(branch, kind, f'{found[0].id} already has when = "{kind}"')
    conditions: dict[object, str] = {}
    for branch in question.conditional:
        if branch.condition in conditions:
            yield _in(branch, "shadowed", f"never taken: {conditions[branch.condition]} has the same condition")
        conditions.setdefault(branch.condition, branch.id)


def _clauses(branch: Branch, specs: Mapping[str, FactSpec]) -> Iterator[Problem]:
    for clause in branch.condition.clauses:
        try:
            check_clause(clause, specs)
        except ClauseError as problem:
            kind = "fact" if "there is no fact" in str(problem) else "unit"
            yield _in(branch, kind, f"{clause.text}: {problem}", problem.hint)


def _sets(branch: Branch, specs: Mapping[str, FactSpec]) -> Iterator[Problem]:
    for key, setting in branch.sets.items():
        if key.startswith(ENVIRONMENT_PREFIX):
            if isinstance(setting, FromFact) and setting.fact not in specs:
                yield _in(branch, "fact", f"set {key}: there is no fact {setting.fact}", closest(setting.fact, specs))
            continue
        if key not in SETTABLE:
            hint = closest(key, SETTABLE) or f"a branch sets {', '.join(SETTABLE)} and environment.NAME"
            yield _in(branch, "settable", f"nothing called {key} can be set", hint)
            continue
        kind, allowed = SETTABLE[key]
        if isinstance(setting, FromFact):
            try:
                spec = spec_of(setting.fact, specs)
            except ClauseError as problem:
                yield _in(branch, "fact", f"set {key}: {problem}", problem.hint)
                continue
            if spec.type != kind:
                yield _in(branch, "settable", f"{key} is a {kind}, the fact {spec.name} is a {spec.type}")
            continue
        right = {"text": str, "boolean": bool, "number": (int, float)}[kind]
        if not isinstance(setting, right) or (kind == "number" and isinstance(setting, bool)):  # type: ignore[arg-type]
            yield _in(branch, "settable", f"{key} is a {kind}, {setting!r} is not")
        elif allowed and setting not in allowed:
            hint = closest(str(setting), allowed) or f"one of {', '.join(allowed)}"
            yield _in(branch, "settable", f"{key} cannot be {setting!r}", hint)


def _evidence(question: Question, branch: Branch) -> Iterator[Problem]:
    if not branch.because:
        yield _in(branch, "because", "the reason is empty", 'write because = "..."')
    if not branch.sources:
        yield _in(branch, "source", "no source", 'write sources = ["https://..."], or say whose choice it is')
    if not any(example.takes == branch.id for example in question.examples):
        yield _in(branch, "example", "no example takes it", f'add [[example]] with takes = "{branch.id}"')


def _next(ruleset: RuleSet, question: Question, branch: Branch) -> Iterator[Problem]:
    following = question.next_of(branch)
    if following is None:
        yield _in(branch, "next", "nothing says what comes next", 'write next = "question_id" or next = "end"')
    elif following != END and following not in ruleset.questions:
        hint = closest(following, [*ruleset.questions, END])
        yield _in(branch, "next", f"leads to {following}, which no file asks", hint)


def _examples(question: Question, specs: Mapping[str, FactSpec]) -> Iterator[Problem]:
    ids = [b.id for b in question.branches]
    for example in question.examples:
        place = f"example {example.number}"
        if example.takes not in ids:
            message = f"{place}: the question {question.id} has no branch {example.takes}"
            yield Problem(
                kind="example",
                file=example.file,
                line=0,
                branch="",
                message=message,
                hint=closest(example.takes, ids),
            )
        try:
            facts_of(example, specs)
        except ClauseError as problem:
            kind = "fact" if "there is no fact" in str(problem) else "unit"
            yield Problem(
                kind=kind, file=example.file, line=0, branch="", message=f"{place}: {problem}", hint=problem.hint
            )


def _paths(ruleset: RuleSet) -> Iterator[Problem]:
    """Find cycles and questions that no path reaches."""
    edges = {
        q.id: sorted({n for b in q.branches if (n := q.next_of(b)) is not None and n != END})
        for q in ruleset.questions.values()
    }
    entry = ruleset.entry
    assert entry is not None  # _entries found one
    finished: set[str] = set()
    path: list[str] = [entry.id]
    pending = [iter(edges[entry.id])]
    while path:
        following = next(pending[-1], None)
        if following is None:
            finished.add(path.pop())
            pending.pop()
        elif following in path:
            cycle = " -> ".join([*path[path.index(following) :], following])
            yield _at(ruleset.questions[path[-1]], "cycle", f"the questions lead in a circle: {cycle}")
        elif following not in finished:
            path.append(following)
            pending.append(iter(edges[following]))
    for question in ruleset.questions.values():
        if question.id not in finished:
            hint = "let a branch of another question say next = " + f'"{question.id}"'
            yield _at(question, "unreachable", f"no path leads to the question {question.id}", hint)
