"""What the frameworks know: key lists read from their releases, and the table of keys that changed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from stratadvisor.lint.finding import Kind

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS: tuple[Kind, ...] = ("deepspeed", "accelerate", "lightning", "transformers")


@dataclass(frozen=True, slots=True)
class Known:
    """One framework's keys."""

    framework: str
    version: str
    sections: dict[str, frozenset[str]]
    choices: dict[str, tuple[str, ...]]
    strict_sections: frozenset[str]
    types: dict[str, str]
    filled_in_deepspeed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Change:
    """A key that is wrong today."""

    path: str
    what: str
    """removed, renamed, deprecated, never."""
    error: bool
    since: str
    fix: str
    source: str


def _data(name: str) -> str:
    return (files("stratadvisor.lint") / "data" / name).read_text(encoding="utf-8")


@lru_cache
def known(kind: Kind) -> Known:
    """Return the keys of a framework."""
    data: dict[str, Any] = json.loads(_data(f"{kind}.json"))
    return Known(
        framework=data["framework"],
        version=data["version"],
        sections={name: frozenset(keys) for name, keys in data["sections"].items()},
        choices={name: tuple(values) for name, values in data["choices"].items()},
        strict_sections=frozenset(data.get("strict_sections", ())),
        types=dict(data.get("types", {})),
        filled_in_deepspeed=frozenset(data.get("filled_in_deepspeed", ())),
    )


@lru_cache
def changes(kind: Kind) -> dict[str, Change]:
    """Return the changed keys of a framework by dotted path."""
    rows = tomllib.loads(_data("changes.toml"))[kind]
    return {row["path"]: Change(**row) for row in rows}
