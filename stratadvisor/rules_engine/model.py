"""What rule files become: questions with branches and examples, merged over all layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stratadvisor.conditions import Condition
from stratadvisor.schema.facts import FactSpec
from stratadvisor.schema.rules import SETTABLE, Scalar

END = "end"
"""The ``next`` of a branch after which nothing is asked."""
SHIPPED_PREFIX = "SA"
"""Branch ids of the shipped flowchart start so; those of an overlay must not."""
CHOSEN_PREFIX = "chosen."
"""``chosen.family``: what an earlier branch has set, readable like a fact."""

Kind = Literal["condition", "otherwise", "unknown"]
Status = Literal["stable", "preview", "deprecated"]


@dataclass(frozen=True, slots=True)
class FromFact:
    """A value that a branch takes from a fact instead of writing it down."""

    fact: str


Setting = Scalar | FromFact


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One way out of a question."""

    id: str
    name: str
    kind: Kind
    condition: Condition
    sets: Mapping[str, Setting]
    warn: str
    next: str | None
    because: str
    sources: tuple[str, ...]
    since: str
    status: Status
    before: str | None
    after: str | None
    file: str
    line: int
    shipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Facts, and the branch that they take."""

    facts: Mapping[str, Scalar]
    takes: str
    note: str
    number: int
    """Position in its file, from 1."""
    file: str
    shipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One step of the flowchart: branches are tried from top to bottom, the first true one is taken."""

    id: str
    ask: str
    entry: bool
    next: str | None
    branches: tuple[Branch, ...]
    examples: tuple[Example, ...]
    file: str
    shipped: bool
    mode: Literal["new", "extend", "replace"] = "new"
    disable: tuple[str, ...] = ()

    @property
    def conditional(self) -> tuple[Branch, ...]:
        """The branches with a condition, in order."""
        return tuple(b for b in self.branches if b.kind == "condition")

    def fallback(self, kind: Literal["otherwise", "unknown"]) -> Branch | None:
        """Return the branch for that case, None where the file lacks it."""
        return next((b for b in self.branches if b.kind == kind), None)

    def next_of(self, branch: Branch) -> str | None:
        """Return the id of the question after ``branch``, or ``end``; None where nothing says."""
        return branch.next if branch.next is not None else self.next


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The merged flowchart."""

    questions: Mapping[str, Question]
    """By id, in reading order."""
    digest: str
    overlays: tuple[str, ...] = ()

    @property
    def entry(self) -> Question | None:
        """The first question."""
        return next((q for q in self.questions.values() if q.entry), None)

    def branch(self, identifier: str) -> tuple[Question, Branch] | None:
        """Return a branch and its question."""
        for question in self.questions.values():
            for branch in question.branches:
                if branch.id == identifier:
                    return question, branch
        return None


def chosen_specs() -> dict[str, FactSpec]:
    """Return the facts that rules themselves make: ``chosen.family`` and its like."""
    return {
        f"{CHOSEN_PREFIX}{key}": FactSpec(
            name=f"{CHOSEN_PREFIX}{key}",
            type=kind,
            unit="count" if kind == "number" else "",
            description=f"what an earlier branch set as {key}; unknown when none did",
        )
        for key, (kind, _) in SETTABLE.items()
    }


def with_chosen(specs: Mapping[str, FactSpec]) -> dict[str, FactSpec]:
    """Return the facts that a condition may name."""
    return {**specs, **chosen_specs()}
