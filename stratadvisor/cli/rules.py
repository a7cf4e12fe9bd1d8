"""``stratadvisor rules``: the flowchart as a thing of its own."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stratadvisor.rules_engine.model import Branch, Question, RuleSet

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Overlays = Annotated[
    list[Path] | None,
    typer.Option("--overlay", help="A folder with rules/*.toml of your own; may be repeated, the last one wins."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
RULE_ERROR_EXIT = 5


class Drawing(str, Enum):
    """Forms of ``rules graph``."""

    text = "text"
    mermaid = "mermaid"
    markdown = "markdown"


def _load(overlays: list[Path] | None) -> RuleSet:
    from stratadvisor.rules_engine.load import load_ruleset

    return load_ruleset(tuple(overlays or ()))


def _branch_data(question: Question, branch: Branch) -> dict[str, object]:
    from stratadvisor.rules_engine.graph import condition_text
    from stratadvisor.rules_engine.model import FromFact

    return {
        "branch": branch.id,
        "question": question.id,
        "name": branch.name,
        "when": condition_text(branch),
        "sets": {k: {"fact": v.fact} if isinstance(v, FromFact) else v for k, v in branch.sets.items()},
        "next": question.next_of(branch),
        "because": branch.because,
        "warn": branch.warn,
        "sources": list(branch.sources),
        "status": branch.status,
        "origin": "shipped" if branch.shipped else "overlay",
        "file": branch.file,
        "line": branch.line,
    }


def _echo_json(data: object) -> None:
    typer.echo(json.dumps(data, indent=2))


def _clean_echo(text: str) -> None:
    """Print text that may come from a stranger's rule file."""
    from stratadvisor.plain import printable

    typer.echo(printable(text))


@app.command("list", epilog="Example: stratadvisor rules list --overlay my-rules")
def list_rules(overlay: Overlays = None, json_output: Json = False) -> None:
    """List every branch of the flowchart, in reading order."""
    ruleset = _load(overlay)
    rows = [(q, b) for q in ruleset.questions.values() for b in q.branches]
    if json_output:
        _echo_json([_branch_data(q, b) for q, b in rows])
        return
    for question in ruleset.questions.values():
        _clean_echo(f"{question.id}: {question.ask}")
        for branch in question.branches:
            origin = "" if branch.shipped else f"  [{branch.file}]"
            _clean_echo(f"  {branch.id:<8} {branch.name}{origin}")


@app.command("show", epilog="Example: stratadvisor rules show SA4501")
def show_rule(
    name: Annotated[str, typer.Argument(help="A branch (SA4501) or a question (node_speeds).")],
    overlay: Overlays = None,
    json_output: Json = False,
) -> None:
    """Show one branch, or every branch of a question: condition, effect, reason, sources."""
    from stratadvisor.conditions import closest
    from stratadvisor.errors import UsageError

    ruleset = _load(overlay)
    found = ruleset.branch(name)
    question = ruleset.questions.get(name)
    if found is not None:
        pairs = [found]
    elif question is not None:
        pairs = [(question, branch) for branch in question.branches]
    else:
        known = [*ruleset.questions, *(b.id for q in ruleset.questions.values() for b in q.branches)]
        hint = closest(name, known) or "stratadvisor rules list shows them all"
        raise UsageError(f"there is no branch or question {name}", hint=hint)
    if json_output:
        data = [_branch_data(q, b) for q, b in pairs]
        _echo_json(data[0] if found is not None else data)
        return
    for asked, branch in pairs:
        _show(asked, branch)


def _show(question: Question, branch: Branch) -> None:
    from stratadvisor.rules_engine.graph import condition_text, sets_text

    where = f"{branch.file}:{branch.line}" if branch.line else branch.file
    lines = [
        f"{branch.id} {branch.name}  ({where})",
        f"  question  {question.id}: {question.ask}",
        f"  when      {condition_text(branch)}",
        f"  sets      {sets_text(branch) or 'nothing'}",
        f"  next      {question.next_of(branch) or '?'}",
        f"  because   {branch.because}",
    ]
    if branch.warn:
        lines.append(f"  warns     {branch.warn}")
    lines += [f"  source    {source}" for source in branch.sources]
    lines += [
        f"  example   {', '.join(f'{k} = {json.dumps(v)}' for k, v in example.facts.items()) or 'no facts'}"
        + (f"  ({example.note})" if example.note else "")
        for example in question.examples
        if example.takes == branch.id
    ]
    _clean_echo("\n".join([*lines, ""]))


@app.command("check", epilog="Example: stratadvisor rules check --overlay my-rules")
def check_rules(overlay: Overlays = None, json_output: Json = False) -> None:
    """Look for faults without running anything: unknown facts, wrong units, circles, missing examples. Exit code 5."""
    from stratadvisor.derive.facts import SPECS
    from stratadvisor.rules_engine.check import problems

    ruleset = _load(overlay)
    found = problems(ruleset, SPECS)
    branches = sum(len(q.branches) for q in ruleset.questions.values())
    if json_output:
        data = [
            {"kind": p.kind, "file": p.file, "line": p.line, "branch": p.branch, "message": p.message, "hint": p.hint}
            for p in found
        ]
        _echo_json({"questions": len(ruleset.questions), "branches": branches, "problems": data})
    else:
        for problem in found:
            _clean_echo(problem.text + (f"\n  {problem.hint}" if problem.hint else ""))
        verdict = "no fault" if not found else f"{len(found)} fault{'s' if len(found) > 1 else ''}"
        typer.echo(f"{len(ruleset.questions)} questions, {branches} branches: {verdict}")
    if found:
        raise typer.Exit(RULE_ERROR_EXIT)


@app.command("test", epilog="Example: stratadvisor rules test --overlay my-rules")
def run_rule_examples(overlay: Overlays = None, json_output: Json = False) -> None:
    """Run the examples inside the rule files. Exit code 5 when one takes another branch than it says."""
    from stratadvisor.derive.facts import SPECS
    from stratadvisor.rules_engine.check import check
    from stratadvisor.rules_engine.examples import run_examples

    ruleset = _load(overlay)
    check(ruleset, SPECS)
    results = run_examples(ruleset, SPECS)
    counts = {status: sum(r.status == status for r in results) for status in ("passed", "overridden", "failed")}
    if json_output:
        data = [
            {
                "question": r.question,
                "expected": r.example.takes,
                "took": r.took,
                "status": r.status,
                "file": r.example.file,
                "number": r.example.number,
            }
            for r in results
        ]
        _echo_json({**counts, "examples": data})
    else:
        for r in results:
            if r.status != "passed":
                note = f" ({r.example.note})" if r.example.note else ""
                _clean_echo(
                    f"{r.status}: {r.example.file}, example {r.example.number}{note}: takes {r.took},"
                    f" says {r.example.takes}"
                )
        typer.echo(", ".join(f"{n} {status}" for status, n in counts.items() if n or status == "passed"))
    if counts["failed"]:
        raise typer.Exit(RULE_ERROR_EXIT)


@app.command("graph", epilog="Example: stratadvisor rules graph --format mermaid")
def graph_rules(
    overlay: Overlays = None,
    form: Annotated[Drawing, typer.Option("--format", help="text, mermaid, or markdown with index and facts.")] = (
        Drawing.text
    ),
    update: Annotated[
        Path | None, typer.Option("--update", help="Write the markdown between the markers of this page instead.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Draw the flowchart."""
    from stratadvisor.derive.facts import SPECS
    from stratadvisor.rules_engine import graph

    ruleset = _load(overlay)
    if update is not None:
        from stratadvisor.errors import UsageError
        from stratadvisor.store import atomic_write, read_text

        page = read_text(update, UsageError)
        atomic_write(update, graph.updated(page, graph.markdown(ruleset, SPECS)))
    elif json_output:
        edges = [
            {"question": q.id, "branch": b.id, "name": b.name, "next": q.next_of(b)}
            for q in ruleset.questions.values()
            for b in q.branches
        ]
        _echo_json({"questions": {q.id: q.ask for q in ruleset.questions.values()}, "edges": edges})
    elif form is Drawing.mermaid:
        _clean_echo(graph.mermaid(ruleset).removesuffix("\n"))
    elif form is Drawing.markdown:
        _clean_echo(graph.markdown(ruleset, SPECS).removesuffix("\n"))
    else:
        _clean_echo(graph.text(ruleset))
