"""The tables of a rule file as they are written, before they are understood."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from stratadvisor.conditions import ClauseError, Condition, finite, parse_clause
from stratadvisor.rules_engine.model import FromFact, Kind, Setting, Status
from stratadvisor.schema.base import Document
from stratadvisor.schema.rules import ENVIRONMENT_PREFIX, LOADS_CODE

MAX_CLAUSES = 24
MAX_TEXT = 1000

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
BranchId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{1,31}$")]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,79}$")]
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_TEXT)]
Scalar = bool | int | float | str
_ENVIRONMENT_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")


class QuestionTable(Document):
    """``[question]``."""

    id: Identifier
    ask: Text = ""
    entry: bool = False
    next: Identifier | None = None
    """Where branches without their own ``next`` lead."""
    mode: Literal["new", "extend", "replace"] = "new"
    disable: tuple[BranchId, ...] = ()


class ExampleTable(Document):
    """``[[example]]``."""

    facts: dict[str, Any]
    takes: BranchId
    note: Text = ""


class BranchTable(Document):
    """``[[branch]]``."""

    id: BranchId
    name: Slug
    when: dict[str, tuple[str, ...]] | str
    set: dict[str, Any] = Field(default_factory=dict)
    warn: Text = ""
    next: Identifier | None = None
    because: Text
    sources: tuple[Annotated[str, StringConstraints(min_length=3, max_length=300)], ...] = ()
    since: str = ""
    status: Status = "stable"
    before: BranchId | None = None
    after: BranchId | None = None

    @field_validator("when", mode="before")
    @classmethod
    def _shape(cls, value: object) -> object:
        if isinstance(value, str) and value not in ("otherwise", "unknown"):
            raise ValueError(f'when = {value!r} is neither "otherwise" nor "unknown"; write when.all = ["{value}"]')
        if isinstance(value, dict):
            wrong = sorted(set(value) - {"all", "any", "not"})
            if wrong or not value:
                raise ValueError(f"when has all, any and not, {f'not {wrong[0]}' if wrong else 'and one is needed'}")
            if any(not isinstance(v, list) or not v or not all(isinstance(c, str) for c in v) for v in value.values()):
                raise ValueError('all, any and not each take a list of clauses: when.all = ["a.fact <= 1"]')
            if sum(len(v) for v in value.values()) > MAX_CLAUSES:
                raise ValueError(f"a branch has at most {MAX_CLAUSES} clauses")
        return value

    @model_validator(mode="after")
    def _one_place(self) -> BranchTable:
        if self.before is not None and self.after is not None:
            raise ValueError("before and after exclude each other")
        return self

    @property
    def kind(self) -> Kind:
        """condition, otherwise or unknown."""
        return self.when if isinstance(self.when, str) else "condition"  # type: ignore[return-value]  # see _shape

    def condition(self) -> Condition:
        """Return the parsed condition.

        Raises:
            ClauseError: a clause cannot be read.

        """
        if isinstance(self.when, str):
            return Condition()
        parts = {key: tuple(parse_clause(text) for text in clauses) for key, clauses in self.when.items()}
        return Condition(parts.get("all", ()), parts.get("any", ()), parts.get("not", ()))

    def settings(self) -> dict[str, Setting]:
        """Return what the branch sets, ``environment`` tables flattened.

        Raises:
            ClauseError: a value that is neither a scalar nor ``{ fact = "name" }``, or no name of a variable.

        """
        flat: dict[str, Any] = {}
        for key, value in self.set.items():
            if key == ENVIRONMENT_PREFIX.rstrip(".") and isinstance(value, dict):
                flat.update({f"{ENVIRONMENT_PREFIX}{name}": inner for name, inner in value.items()})
            else:
                flat[key] = value
        return {key: _setting(key, value) for key, value in flat.items()}


def _setting(key: str, value: object) -> Setting:
    name = key.removeprefix(ENVIRONMENT_PREFIX)
    if name != key and not _ENVIRONMENT_NAME.fullmatch(name):
        raise ClauseError(f"set {key}: {name!r} is no name of an environment variable", "write it in capitals")
    if name != key and LOADS_CODE.fullmatch(name):
        raise ClauseError(
            f"set {key}: {name} decides which code runs; no rule sets it", "set it where you start the run"
        )
    if isinstance(value, (bool, int, float, str)):
        if isinstance(value, str) and (len(value) > MAX_TEXT or "\n" in value or "\0" in value):
            raise ClauseError(f"set {key}: a value is one line of at most {MAX_TEXT} characters")
        if isinstance(value, (int, float)) and not finite(value):
            raise ClauseError(f"set {key}: {str(value)[:20]} is not a finite number of reasonable size")
        return value
    if isinstance(value, dict) and set(value) == {"fact"} and isinstance(value["fact"], str):
        return FromFact(value["fact"])
    raise ClauseError(f"set {key}: the value is neither a number, a text nor a fact", 'write { fact = "its.name" }')
