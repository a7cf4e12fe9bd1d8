"""Overlays: questions of a higher layer add to, extend or replace those below, never by accident."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratadvisor.conditions import closest
from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.model import Branch, Question


def merge(questions: Iterable[Question]) -> dict[str, Question]:
    """Return the questions by id, lowest layer first in the input.

    Raises:
        RuleError: two files with one id and no mode, a mode without a question to apply it to, a missing anchor.

    """
    merged: dict[str, Question] = {}
    for question in questions:
        below = merged.get(question.id)
        if below is None:
            if question.mode != "new":
                raise RuleError(
                    f"{question.file}: mode = {question.mode!r}, but there is no question {question.id} below it",
                    hint=closest(question.id, merged),
                )
            if question.disable:
                raise RuleError(f"{question.file}: disable belongs to mode = 'extend'")
            merged[question.id] = question
        elif question.mode == "new":
            raise RuleError(
                f"{question.file}: the question {question.id} is already in {below.file}",
                hint="say mode = 'extend' or mode = 'replace' under [question], or choose another id",
            )
        elif question.mode == "replace":
            merged[question.id] = replace(question, ask=question.ask or below.ask, entry=question.entry or below.entry)
        else:
            merged[question.id] = _extended(below, question)
    return merged


def _extended(below: Question, above: Question) -> Question:
    ids = [b.id for b in below.branches]
    for identifier in above.disable:
        if identifier not in ids:
            raise RuleError(
                f"{above.file}: disable names {identifier}, which the question {below.id} does not have",
                hint=closest(identifier, ids),
            )
    branches = [b for b in below.branches if b.id not in above.disable]
    for branch in above.branches:
        _insert(branches, branch, above)
    return replace(
        below,
        ask=above.ask or below.ask,
        entry=above.entry or below.entry,
        next=above.next or below.next,
        branches=tuple(branches),
        examples=tuple(e for e in below.examples if e.takes not in above.disable) + above.examples,
    )


def _insert(branches: list[Branch], branch: Branch, above: Question) -> None:
    anchor = branch.before or branch.after
    if anchor is None:
        if branch.kind == "condition":
            raise RuleError(
                f"{above.file}: branch {branch.id} does not say where it belongs",
                hint='branches are tried in order: add before = "ID" or after = "ID"',
            )
        branches.append(branch)
        return
    positions = [i for i, b in enumerate(branches) if b.id == anchor]
    if not positions:
        raise RuleError(
            f"{above.file}: branch {branch.id} stands next to {anchor}, which is not there (any more)",
            hint=closest(anchor, [b.id for b in branches]),
        )
    branches.insert(positions[0] + (branch.before is None), branch)
