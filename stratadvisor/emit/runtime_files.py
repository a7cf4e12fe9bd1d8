"""The runtime modules that a bundle needs: what its program and its engine import, directly or through each other."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from importlib.resources import files

from stratadvisor.emit.check import parse_python
from stratadvisor.emit.manifest import RUNTIME_FOLDER
from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import EmittedFile


@lru_cache(maxsize=1)
def _sources() -> dict[str, str]:
    """Return the text of every module of stratadvisor.runtime by name."""
    folder = files("stratadvisor") / "runtime"
    return {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".py")
    }


_OWN_IMPORT = re.compile(r"^[ ]*from \.(\w*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
"""An import of the runtime by itself, as the formatter leaves it; a test compares with what Python's parser finds."""


def own_imports(text: str) -> set[str]:
    """Return the modules of the runtime that one of its modules imports anywhere, also inside functions.

    Parsing all of them takes a tenth of the time of a whole ``recommend``.
    """
    found: set[str] = set()
    for module, names in _OWN_IMPORT.findall(text):
        given = (name.split(" as ")[0].strip(" ()\n") for name in names.split(","))
        found.update([module] if module else filter(None, given))
    return found


def program_imports(tree: ast.Module, package: str) -> set[str]:
    """Return the modules of the runtime that a program imports; ``package`` is the name that it has there."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(
                alias.name.removeprefix(f"{package}.").split(".")[0]
                for alias in node.names
                if alias.name.startswith(f"{package}.")
            )
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.module == package:
            found.update(alias.name for alias in node.names)
        elif node.module and node.module.startswith(f"{package}."):
            found.add(node.module.removeprefix(f"{package}.").split(".")[0])
    return found


def engine_module(engine: str) -> str:
    """Return the module of an engine: runtime/engine.py keeps the table and loads modules by name.

    Raises:
        EmitError: the table lacks the engine.

    """
    for node in parse_python(_sources()["engine"]).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CLASSES" for t in node.targets):
            table: dict[str, tuple[str, str]] = ast.literal_eval(node.value)
            if engine in table:
                return table[engine][0]
    raise EmitError(f"the training program has no engine {engine!r}")


def needed_modules(program: str, path: str, engine: str) -> tuple[str, ...]:
    """Return the names of the runtime modules that ``program`` (its text) needs to run ``engine``, sorted.

    Raises:
        EmitError: the program is not Python, or imports a runtime module that does not exist.

    """
    try:
        tree = parse_python(program)
    except (SyntaxError, ValueError) as problem:
        raise EmitError(f"{path} would not be valid python: {problem}") from None
    sources = _sources()
    waiting = sorted(program_imports(tree, RUNTIME_FOLDER))
    if waiting:
        waiting.append(engine_module(engine))
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        if name not in sources:
            raise EmitError(f"{path} imports {RUNTIME_FOLDER}.{name}, which does not exist")
        needed.add(name)
        waiting += sorted(own_imports(sources[name]))
    return ("__init__", *sorted(needed - {"__init__"})) if needed else ()


def runtime_files(programs: list[EmittedFile], engine: str) -> tuple[EmittedFile, ...]:
    """Return copies of the runtime modules that the Python files of a bundle need."""
    names = {name for program in programs for name in needed_modules(program.content, program.path, engine)}
    return tuple(
        EmittedFile(path=f"{RUNTIME_FOLDER}/{name}.py", content=_sources()[name], format="python")
        for name in sorted(names)
    )
