"""Published models by name. ``models.toml`` has their configurations, with a source each."""

from __future__ import annotations

import sys
from functools import cache
from importlib.resources import files
from typing import Any

from stratadvisor.catalog.hugging_face import shape_from_config
from stratadvisor.schema.workload import ModelShape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def normalised(name: str) -> str:
    """Return a name as the catalog spells it: lower case, hyphens, no owner, no ``-hf``."""
    text = name.strip().lower().replace("_", "-").replace(" ", "-")
    return text.rpartition("/")[2].removesuffix("-hf")


@cache
def _rows() -> dict[str, dict[str, Any]]:
    text = files("stratadvisor.catalog").joinpath("models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def _keys() -> dict[str, str]:
    """Return every accepted name -> key of its row."""
    found = {normalised(alias): key for key, row in _rows().items() for alias in row.get("aliases", ())}
    return {**found, **{normalised(key): key for key in _rows()}}


def names() -> tuple[str, ...]:
    """Return the names of all models, in the order of the catalog."""
    return tuple(_rows())


def published_parameters(name: str) -> int | None:
    """Return the number of parameters that the publisher of the checkpoint states, None when it is not recorded."""
    row = _rows().get(_keys().get(normalised(name), ""), {})
    value = row.get("published_parameters")
    return value if isinstance(value, int) else None


@cache
def lookup(name: str) -> ModelShape | None:
    """Return the shape of a published model, None for a name that is not in the catalog: never a similar one."""
    key = _keys().get(normalised(name))
    if key is None:
        return None
    row = _rows()[key]
    return shape_from_config(row["config"], key, source=row["source"])
