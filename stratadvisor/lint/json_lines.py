"""Line of every key of a JSON text, and keys that stand twice: what ``json.loads`` does not tell."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from stratadvisor.lint.finding import Path

_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


@dataclass(slots=True)
class Places:
    """Where keys stand."""

    lines: dict[Path, int] = field(default_factory=dict)
    twice: list[tuple[Path, int]] = field(default_factory=list)
    """Keys that an object holds more than once, with the line of the first one."""


@dataclass(slots=True)
class _Level:
    is_object: bool
    key: str = ""
    index: int = 0
    expects_key: bool = True


def places(text: str) -> Places:
    """Return the places of a text that is known to be valid JSON."""
    found = Places()
    levels: list[_Level] = []
    line, seen = 1, 0
    for match in _PART.finditer(text):
        line += text.count("\n", seen, match.start())
        seen = match.start()
        part = match.group()
        if part in "{[":
            levels.append(_Level(part == "{"))
            if part == "[":
                found.lines.setdefault((*_path(levels[:-1]), 0), line)
        elif part in "}]":
            levels.pop()
        elif part == ",":
            level = levels[-1]
            level.expects_key = True
            level.index += 1
            if not level.is_object:
                found.lines.setdefault(_path(levels), line)
        elif part == ":":
            levels[-1].expects_key = False
        elif levels and levels[-1].is_object and levels[-1].expects_key:
            levels[-1].key = json.loads(part)
            where = _path(levels)
            if where in found.lines:
                found.twice.append((where, found.lines[where]))
            found.lines[where] = line
    return found


def _path(levels: list[_Level]) -> Path:
    return tuple(level.key if level.is_object else level.index for level in levels)
