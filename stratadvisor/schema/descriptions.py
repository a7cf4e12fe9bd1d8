"""Field docstrings as the descriptions of a JSON schema.

pydantic's ``use_attribute_docstrings`` does the same for every model whenever it is imported, by reading sources, which
every command would pay for; only ``stratadvisor schema`` shows them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from stratadvisor.schema.base import Document


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a document, each field described by the docstring below it."""
    schema = model.model_json_schema()
    classes = {cls.__name__: cls for cls in _subclasses(Document)}
    for name, part in {**schema.get("$defs", {}), model.__name__: schema}.items():
        if name in classes:
            texts = _docstrings(classes[name])
            for field, content in part.get("properties", {}).items():
                if field in texts:
                    content.setdefault("description", texts[field])
    return schema


def _subclasses(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _subclasses(below)


def _docstrings(cls: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a class's fields, inherited ones included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            assert isinstance(body, ast.ClassDef)
            found |= dict(_documented(body.body))
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match below:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.target.id, inspect.cleandoc(text)
