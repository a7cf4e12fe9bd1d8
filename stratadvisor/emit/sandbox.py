"""The sandbox of templates: they read fields of what they are given and print; nothing they hold can be called.

Jinja's own sandbox hides names with underscores, but a pydantic document has public methods that read files
(``parse_file``) and even unpickle (``parse_raw``). So it is said here what is allowed, not what is forbidden.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from jinja2 import Undefined, runtime, utils
from jinja2.environment import TemplateModule
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from pydantic import BaseModel

_TESTS = frozenset(("endswith", "find", "isalpha", "isdigit", "startswith"))
_CHANGES = frozenset(("capitalize", "lower", "lstrip", "removeprefix", "removesuffix", "replace", "rstrip", "strip"))
_PARTS = frozenset(("join", "partition", "rpartition", "rsplit", "split", "splitlines", "title", "upper"))
_TEXT_METHODS = _TESTS | _CHANGES | _PARTS
_METHODS: dict[type, frozenset[str]] = {
    str: _TEXT_METHODS,
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
}
"""Methods that a template may call on a plain value: none changes it, opens anything or takes a format."""
_CALLABLE_GLOBALS = (safe_range, dict, utils.Namespace, utils.Joiner, utils.Cycler)
_NUMBERS = (bool, int, float, type(None))


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Fields of documents, a few methods of plain values, macros and blocks; nothing random, nothing else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_printable, **options)
        self.globals.pop("lipsum", None)  # random text: the same plan would give other bytes
        self.filters.pop("random", None)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read ``obj.attr``."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        if isinstance(obj, type):
            return False
        if isinstance(obj, BaseModel):
            return attr in type(obj).model_fields
        if dataclasses.is_dataclass(obj):
            names = {field.name for field in dataclasses.fields(obj)}
            return attr in names or isinstance(getattr(type(obj), attr, None), property)
        for kind, names_allowed in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names_allowed
        return _of_jinja(obj)

    def is_safe_callable(self, obj: Any) -> bool:
        """Return whether a template may call ``obj``."""
        if not super().is_safe_callable(obj):
            return False
        if any(obj is allowed for allowed in _CALLABLE_GLOBALS):
            return True
        if isinstance(obj, (types.BuiltinMethodType, types.MethodType)):
            owner = obj.__self__
            plain = any(isinstance(owner, kind) and obj.__name__ in names for kind, names in _METHODS.items())
            return plain or (_of_jinja(owner) and not isinstance(owner, type))
        return _of_jinja(obj) and not isinstance(obj, type)


def _of_jinja(obj: Any) -> bool:
    """Return whether ``obj`` is one of Jinja's own helpers: a loop, a macro, a block, an imported template."""
    return isinstance(
        obj,
        (
            runtime.LoopContext,
            runtime.Macro,
            runtime.BlockReference,
            runtime.TemplateReference,
            TemplateModule,
            Undefined,
            utils.Namespace,
            utils.Joiner,
            utils.Cycler,
        ),
    )


def _printable(value: object) -> object:
    """Refuse to print what has an address in memory in place of a text: it would differ in every run."""
    if isinstance(value, (str, *_NUMBERS, Undefined)) or not callable(value):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be printed; call it, or name one of its fields")
