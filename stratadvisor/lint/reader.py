"""A configuration file as plain values, with the line of every key. JSON by its ending, YAML otherwise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratadvisor.errors import UsageError
from stratadvisor.lint.json_lines import Places, places
from stratadvisor.store import read_text

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Read:
    """A file's values and places."""

    path: Path
    data: dict[Any, Any]
    places: Places
    is_yaml: bool


def read_config(path: Path) -> Read:
    """Return the mapping in a JSON or YAML file.

    Raises:
        UsageError: no such file, too large, neither JSON nor YAML, no mapping at the top, too deep.

    """
    text = read_text(path, UsageError, 4 * MAX_BYTES)
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES // 1024} KiB, which no such file is")
    is_yaml = path.suffix.lower() != ".json"
    if not is_yaml:
        data = _json(text, path)
        found = places(text)
    else:
        from stratadvisor.lint.yaml_lines import YamlProblemError, read_yaml

        try:
            data, found = read_yaml(text)
        except YamlProblemError as problem:
            raise UsageError(f"{path} {problem}", hint="a name that ends in .json is read as JSON") from None
    if not isinstance(data, dict):
        what = "nothing" if data is None else f"a {type(data).__name__}"
        raise UsageError(f"{path} holds {what} at the top, not keys with values")
    return Read(path, data, found, is_yaml)


def _json(text: str, path: Path) -> Any:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as problem:
        raise UsageError(
            f"{path} is not JSON: line {problem.lineno}, column {problem.colno}: {problem.msg}",
            hint="comments and trailing commas are no JSON; json.load refuses them too",
        ) from None
    except (RecursionError, ValueError) as problem:
        raise UsageError(f"{path} is not usable JSON: {type(problem).__name__}") from None
    if _depth(data) > MAX_DEPTH:
        raise UsageError(f"{path} is nested deeper than {MAX_DEPTH} levels")
    return data


def _depth(data: Any) -> int:
    level, depth = [data], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    return depth
