"""Draw a flowchart: text for a terminal, Mermaid for a page, tables for ``rules/README.md``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stratadvisor.errors import RuleError
from stratadvisor.rules_engine.model import END, Branch, FromFact, Question, RuleSet
from stratadvisor.schema.facts import FactSpec
from stratadvisor.schema.rules import SETTABLE

BEGIN = "<!-- generated: begin -->"
FINISH = "<!-- generated: end -->"
_UNSAFE = re.compile(r"[^A-Za-z0-9 .,:?'/()+-]")


def condition_text(branch: Branch) -> str:
    """Return when a branch is taken, in one line."""
    if branch.kind == "otherwise":
        return "otherwise"
    if branch.kind == "unknown":
        return "a fact needed is unknown"
    parts = [clause.text for clause in branch.condition.all_of]
    if branch.condition.any_of:
        parts.append("(" + " or ".join(c.text for c in branch.condition.any_of) + ")")
    parts += [f"not {clause.text}" for clause in branch.condition.none_of]
    return " and ".join(parts)


def sets_text(branch: Branch) -> str:
    """Return what a branch sets, in one line; empty for nothing."""
    return ", ".join(
        f"{key} = {'the fact ' + value.fact if isinstance(value, FromFact) else _value(value)}"
        for key, value in branch.sets.items()
    )


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def text(ruleset: RuleSet) -> str:
    """Return the flowchart for a terminal, in reading order."""
    lines: list[str] = []
    for question in ruleset.questions.values():
        lines += [f"{question.id}: {question.ask}"]
        for branch in question.branches:
            lines.append(f"  {branch.id} {branch.name}")
            lines.append(f"      when {condition_text(branch)}")
            if branch.sets:
                lines.append(f"      set  {sets_text(branch)}")
            lines.append(f"      next {question.next_of(branch) or '?'}")
        lines.append("")
    return "\n".join(lines)


def _label(words: str) -> str:
    """Return text that Mermaid takes as a label, whatever an overlay wrote."""
    return _UNSAFE.sub(" ", words)


def _node(question_id: str) -> str:
    """Return a name that is no word of Mermaid's own, as ``end`` is."""
    return f"q_{question_id}"


def _edges(question: Question) -> dict[str, list[Branch]]:
    """Return the branches by the question they lead to."""
    edges: dict[str, list[Branch]] = {}
    for branch in question.branches:
        edges.setdefault(question.next_of(branch) or END, []).append(branch)
    return edges


def mermaid(ruleset: RuleSet) -> str:
    """Return the flowchart as a Mermaid diagram; families stand on the edges that choose them."""
    lines = ["flowchart TD"]
    for question in ruleset.questions.values():
        shape = f'(["{_label(question.ask)}"])' if question.entry else f'["{_label(question.ask)}"]'
        lines.append(f"    {_node(question.id)}{shape}")
    lines.append(f'    {_node(END)}(["plan"])')
    for question in ruleset.questions.values():
        edges = _edges(question)
        for target, branches in edges.items():
            goal = _node(target)
            names = [_edge_label(b) for b in branches] if len(edges) > 1 or _decides(branches) else []
            lines.append(
                f"    {_node(question.id)} -->" + (f'|"{"<br/>".join(names)}"| {goal}' if names else f" {goal}")
            )
    return "\n".join(lines) + "\n"


def _decides(branches: list[Branch]) -> bool:
    return any("family" in branch.sets for branch in branches)


def _edge_label(branch: Branch) -> str:
    family = branch.sets.get("family")
    return _label(branch.name.replace("-", " ")) + (f": {_label(str(family)).upper()}" if family is not None else "")


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")


def index(ruleset: RuleSet) -> str:
    """Return a Markdown table of all branches."""
    lines = ["| branch | question | situation | when | sets | next |", "| --- | --- | --- | --- | --- | --- |"]
    for question in ruleset.questions.values():
        for branch in question.branches:
            cells = (
                branch.id,
                question.id,
                branch.name.replace("-", " "),
                condition_text(branch),
                sets_text(branch),
                question.next_of(branch) or "",
            )
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def facts_table(specs: Mapping[str, FactSpec]) -> str:
    """Return a Markdown table of the facts that rules may name."""
    lines = ["| fact | type | unit | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| {s.name} | {s.type} | {s.unit} | {_cell(s.description)} |" for s in specs.values()]
    return "\n".join(lines) + "\n"


def settable_table() -> str:
    """Return a Markdown table of what a branch may set."""
    lines = ["| key | type | values |", "| --- | --- | --- |"]
    lines += [f"| {key} | {kind} | {', '.join(allowed) or 'any'} |" for key, (kind, allowed) in SETTABLE.items()]
    lines.append("| environment.NAME | text | any; a variable of the launch script |")
    return "\n".join(lines) + "\n"


def markdown(ruleset: RuleSet, specs: Mapping[str, FactSpec]) -> str:
    """Return the generated part of ``rules/README.md``."""
    return (
        f"## The flowchart\n\n```mermaid\n{mermaid(ruleset)}```\n\n## Index of branches\n\n{index(ruleset)}\n"
        f"## Facts\n\n{facts_table(specs)}\n## What a branch may set\n\n{settable_table()}"
    )


def updated(page: str, generated: str) -> str:
    """Return ``page`` with ``generated`` between its two markers.

    Raises:
        RuleError: a marker is missing.

    """
    head, begin, rest = page.partition(BEGIN)
    _, finish, tail = rest.partition(FINISH)
    if not begin or not finish:
        raise RuleError("the page lacks the markers between which the index goes", hint=f"add {BEGIN} and {FINISH}")
    return f"{head}{BEGIN}\n{generated}{FINISH}{tail}"
