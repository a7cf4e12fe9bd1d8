"""Parse every output by its own format before anything is written."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache

from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import EmittedFile, FileFormat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_NUMBER_WITHOUT_A_DOT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+")


@lru_cache(maxsize=64)
def parse_python(text: str) -> ast.Module:
    """Return the syntax tree; remembered, since the search for runtime modules needs it as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _json(text: str) -> None:
    json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _yaml(text: str) -> None:
    """Parse YAML where a library for it is installed; the tool itself does without one."""
    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        return
    try:
        yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ValueError(" ".join(str(problem).split())) from None
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken) and token.plain and _NUMBER_WITHOUT_A_DOT.fullmatch(token.value):
            raise ValueError(f"line {token.start_mark.line + 1}: {token.value} has no dot, YAML 1.1 reads it as text")


def _python(text: str) -> None:
    try:
        parse_python(text)
    except SyntaxError as problem:
        raise ValueError(f"line {problem.lineno}: {problem.msg}") from None


def _shell(text: str) -> None:
    """Let bash read it without running it, where bash exists."""
    bash = shutil.which("bash")
    if bash is None:
        return
    result = subprocess.run(
        [bash, "--norc", "-n"], input=text.encode(), capture_output=True, check=False, timeout=60, env={"LC_ALL": "C"}
    )
    if result.returncode != 0:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[0] if lines else f"bash -n ends with {result.returncode}")


_CHECKS: dict[FileFormat, Callable[[str], object]] = {
    "json": _json,
    "toml": tomllib.loads,
    "yaml": _yaml,
    "python": _python,
    "shell": _shell,
}


def check_file(file: EmittedFile) -> None:
    """Prove that ``file`` parses by its format.

    Raises:
        EmitError: it does not; names the file and what the parser said.

    """
    if "\0" in file.content:
        raise EmitError(f"{file.path} would hold a NUL character")
    try:
        file.content.encode("utf-8")
        _CHECKS.get(file.format, len)(file.content)
    except (ValueError, RecursionError, MemoryError) as problem:
        raise EmitError(
            f"{file.path} would not be valid {file.format}: {problem}",
            hint="a template of an overlay, or a value it prints, breaks the file; nothing was written",
        ) from None
