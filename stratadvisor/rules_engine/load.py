"""Rule files -> questions -> one merged flowchart."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from stratadvisor.conditions import ClauseError, closest, finite
from stratadvisor.errors import RuleError
from stratadvisor.resources import bundled
from stratadvisor.rules_engine.merge import merge
from stratadvisor.rules_engine.model import END, SHIPPED_PREFIX, Branch, Example, Question, RuleSet
from stratadvisor.rules_engine.tables import BranchTable, ExampleTable, QuestionTable
from stratadvisor.store import parse_toml

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

SCHEMA_VERSION = 1
MAX_FILE_BYTES = 256 * 1024
MAX_FILES = 200
MAX_BRANCHES = 64
MAX_EXAMPLES = 400
OVERLAY_FOLDERS = ("rules", "templates", "catalog")

Table = TypeVar("Table", bound=BaseModel)


def load_ruleset(overlays: tuple[Path, ...] = ()) -> RuleSet:
    """Return the shipped flowchart with the overlays' rules merged in, the last overlay on top.

    Raises:
        RuleError: a file that cannot be read, or an overlay that does not fit what lies below it.

    """
    texts = [(f"rules/{name}", text, True) for name, text in _folder(bundled("rules"))]
    for overlay in overlays:
        texts += [(str(overlay / "rules" / name), text, False) for name, text in _overlay(overlay)]
    return ruleset_of(texts, overlays=tuple(str(overlay) for overlay in overlays))


def ruleset_of(texts: Iterable[tuple[str, str, bool]], *, overlays: tuple[str, ...] = ()) -> RuleSet:
    """Return the flowchart of (file, text, shipped) triples, lowest layer first."""
    digest = hashlib.sha256()
    questions: list[Question] = []
    for file, text, shipped in texts:
        digest.update(f"{Path(file).name}\0{len(text)}\0{text}\0".encode("utf-8", "surrogatepass"))
        questions.append(parse_file(text, file, shipped=shipped))
    return RuleSet(questions=merge(questions), digest=digest.hexdigest()[:16], overlays=overlays)


def _overlay(overlay: Path) -> list[tuple[str, str]]:
    if not overlay.is_dir():
        raise RuleError(f"the overlay {overlay} is not a directory", hint="give a folder that holds rules/*.toml")
    if not any((overlay / name).is_dir() for name in OVERLAY_FOLDERS):
        raise RuleError(
            f"the overlay {overlay} has none of {', '.join(f'{n}/' for n in OVERLAY_FOLDERS)}",
            hint="put rule files into its folder rules/",
        )
    rules = overlay / "rules"
    return _folder(rules) if rules.is_dir() else []


def _folder(folder: Traversable) -> list[tuple[str, str]]:
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    except OSError as problem:
        raise RuleError(f"{folder} cannot be read: {problem.strerror}") from None
    if len(names) > MAX_FILES:
        raise RuleError(f"{folder} holds {len(names)} rule files; {MAX_FILES} is the limit")
    return [(name, _read(folder / name)) for name in names]


def _read(entry: Traversable) -> str:
    try:
        if not entry.is_file():  # a pipe would wait for ever, a device never end
            raise RuleError(f"{entry} is not a file")
        if isinstance(entry, Path) and entry.stat().st_size > MAX_FILE_BYTES:
            raise RuleError(f"{entry} is larger than {MAX_FILE_BYTES // 1024} KiB", hint="one question per file")
        data = entry.read_bytes()
    except OSError as problem:
        raise RuleError(f"{entry} cannot be read: {problem.strerror}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise RuleError(f"{entry} is not UTF-8 text (byte {problem.start})") from None


def parse_file(text: str, file: str, *, shipped: bool) -> Question:
    """Return the question of one rule file.

    Raises:
        RuleError: it names the file, the line or branch, and what to write instead.

    """
    data = _toml(text, file)
    version = data.pop("schema_version", None)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise RuleError(
            f"{file}: schema_version is {version!r}; this stratadvisor reads {SCHEMA_VERSION}",
            hint=f"the file starts with the line: schema_version = {SCHEMA_VERSION}",
        )
    known = ("question", "branch", "example")
    for key in data:
        if key not in known:
            raise RuleError(f"{file}: there is no table {key!r} in a rule file", hint=closest(key, known))
    question = _validated(QuestionTable, data.get("question"), file, "[question]")
    if question.id == END:
        raise RuleError(f"{file}: no question can be called {END}", hint=f'next = "{END}" ends the flowchart')
    branches = _list(data, "branch", file, MAX_BRANCHES)
    examples = _list(data, "example", file, MAX_EXAMPLES)
    if not branches and question.mode != "extend":
        raise RuleError(f"{file}: the question {question.id} has no [[branch]]")
    return Question(
        id=question.id,
        ask=question.ask,
        entry=question.entry,
        next=question.next,
        branches=tuple(_branch(table, i, text, file, shipped) for i, table in enumerate(branches, 1)),
        examples=tuple(_example(table, i, file, shipped) for i, table in enumerate(examples, 1)),
        file=file,
        shipped=shipped,
        mode=question.mode,
        disable=question.disable,
    )


def _toml(text: str, file: str) -> dict[str, Any]:
    return parse_toml(text, file, RuleError, hint="inline tables stay on one line, texts in quotes")


def _validated(model: type[Table], data: object, file: str, place: str) -> Table:
    if not isinstance(data, dict):
        raise RuleError(f"{file}: {place} is missing or no table")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in problem["loc"] if not str(part).startswith(("dict[", "str")))
        message = problem["msg"].removeprefix("Value error, ")
        hint = ""
        if problem["type"] == "extra_forbidden":
            message, hint = f"there is no key {path!r} here", closest(path, model.model_fields)
            path = ""
        raise RuleError(f"{file}: {place}: {f'{path}: ' if path else ''}{message}", hint=hint) from None
    except RecursionError:
        raise RuleError(f"{file}: {place} is nested too deeply") from None


def _list(data: dict[str, Any], key: str, file: str, limit: int) -> list[Any]:
    tables = data.get(key, [])
    if not isinstance(tables, list):
        raise RuleError(f"{file}: {key} must be a list of tables", hint=f"write [[{key}]] with two brackets")
    if len(tables) > limit:
        raise RuleError(f"{file}: {len(tables)} tables [[{key}]]; {limit} is the limit")
    return tables


_ID = re.compile(r"^\s*id\s*=\s*[\"']([^\"']*)[\"']", re.MULTILINE)


def _line_of(branch: str, text: str) -> int:
    """Return the number of the line that gives a branch its id; 0 where it is written in another way."""
    for match in _ID.finditer(text):
        if match[1] == branch:
            return text.count("\n", 0, match.start(1)) + 1
    return 0


def _branch(data: Any, number: int, text: str, file: str, shipped: bool) -> Branch:
    given = data.get("id") if isinstance(data, dict) else None
    place = f"branch {given}" if isinstance(given, str) else f"[[branch]] number {number}"
    table = _validated(BranchTable, data, file, place)
    if not shipped and table.id.upper().startswith(SHIPPED_PREFIX):
        raise RuleError(
            f"{file}: branch {table.id}: ids that start with {SHIPPED_PREFIX} belong to the shipped rules",
            hint="start it with letters of your own, for example MY01",
        )
    try:
        condition, sets = table.condition(), table.settings()
    except ClauseError as problem:
        raise RuleError(f"{file}: branch {table.id}: {problem}", hint=problem.hint) from None
    return Branch(
        id=table.id,
        name=table.name,
        kind=table.kind,
        condition=condition,
        sets=sets,
        warn=table.warn,
        next=table.next,
        because=table.because,
        sources=table.sources,
        since=table.since,
        status=table.status,
        before=table.before,
        after=table.after,
        file=file,
        line=_line_of(table.id, text),
        shipped=shipped,
    )


def _example(data: Any, number: int, file: str, shipped: bool) -> Example:
    place = f"[[example]] number {number}"
    table = _validated(ExampleTable, data, file, place)
    for name, value in table.facts.items():
        if not isinstance(value, (bool, int, float, str)):
            raise RuleError(
                f"{file}: {place}: {name} has a {type(value).__name__} as its value",
                hint='write the whole name in quotes: facts = { "cluster.num_devices" = 8 }; leave unknown facts out',
            )
        if isinstance(value, (int, float)) and not finite(value):
            raise RuleError(f"{file}: {place}: {name} is not a finite number of reasonable size")
    return Example(facts=table.facts, takes=table.takes, note=table.note, number=number, file=file, shipped=shipped)
