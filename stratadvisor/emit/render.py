"""Jinja environment of the templates: sandboxed, strict about undefined names, errors with file and line."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from jinja2 import BaseLoader, ChoiceLoader, Environment, PrefixLoader, StrictUndefined, TemplateNotFound
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from pydantic import BaseModel

from stratadvisor.emit.manifest import check_relative, read_member, template_roots
from stratadvisor.emit.sandbox import TemplateSandbox
from stratadvisor.errors import EmitError
from stratadvisor.resources import bundled

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable

_MARKDOWN_SPECIAL = re.compile(r"([\\`*\[\]<|~$#]|^[>+-])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


def shell_word(value: object) -> str:
    """Return ``value`` as one shell word that the shell takes literally.

    Raises:
        ValueError: it holds a NUL, which no shell word can.
        TypeError: it is neither a text nor a number.

    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"the filter sh takes a text or a number, not {type(value).__name__}")
    text = str(value)
    if "\0" in text:
        raise ValueError("a text with a NUL cannot be written into a shell file")
    return shlex.quote(text)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"the filter json takes plain values, not {type(value).__name__}")


def json_text(value: object, indent: int | None = None) -> str:
    """Return ``value`` as ASCII JSON with sorted keys, also safe behind a comment sign: it never holds a newline."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False, indent=indent, default=_plain)
    if isinstance(value, float) and "." not in text:
        text = text.replace("e", ".0e")  # YAML 1.1 reads 2e-05 as text, 2.0e-05 as the number
    return text


def markdown_text(value: object) -> str:
    """Return ``value`` as one line of Markdown prose in which nothing is markup."""
    if not isinstance(value, (str, int, float)):
        raise TypeError(f"the filter md takes a text or a number, not {type(value).__name__}")
    return _MARKDOWN_SPECIAL.sub(r"\\\1", _CONTROL.sub(" ", str(value)))


class RootLoader(BaseLoader):
    """Templates of one root, a folder on disk or inside a wheel."""

    def __init__(self, root: Traversable) -> None:
        self._root = root

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, None]:
        """Return the text and the place of a template."""
        del environment
        try:
            check_relative(template)
        except ValueError:
            raise TemplateNotFound(template) from None
        file = self._root
        for part in template.split("/"):
            file = file / part
        if not file.is_file():
            raise TemplateNotFound(template)
        return read_member(self._root, file), str(file), None


def make_environment(overlays: tuple[Path, ...] = ()) -> Environment:
    """Return the environment: overlays shadow the shipped templates, which stay reachable under ``bundled/``."""
    return _build(overlays) if overlays else _shipped()


@lru_cache(maxsize=1)
def _shipped() -> Environment:
    """Return the environment without overlays, which keeps its compiled templates."""
    return _build(())


def _build(overlays: tuple[Path, ...]) -> Environment:
    roots = [RootLoader(root) for root in template_roots(overlays)]
    environment = TemplateSandbox(
        loader=ChoiceLoader([*roots, PrefixLoader({"bundled": RootLoader(bundled("templates"))})]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # none of the outputs is HTML; sh, json and md quote by format
    )
    environment.filters.update(sh=shell_word, json=json_text, md=markdown_text)
    return environment


def _where(traceback: TracebackType | None, fallback: str) -> str:
    """Return file and line of the innermost template frame: Jinja gives template frames the template's own name."""
    place = fallback
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if "__jinja_template__" in traceback.tb_frame.f_globals or name.endswith(".j2"):
            place = f"{name}, line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def render(environment: Environment, template: str, context: Mapping[str, object]) -> str:
    """Return the text of a template.

    Raises:
        EmitError: the template is missing, misspelt, uses a name that does not exist or fails; names file and line.

    """
    try:
        return environment.get_template(template).render(context)
    except TemplateNotFound as problem:
        asked = f" (asked for by {template})" if problem.name != template else ""
        raise EmitError(f"there is no template {problem.name!r}{asked}") from None
    except TemplateSyntaxError as problem:
        raise EmitError(
            f"{problem.filename or problem.name or template}, line {problem.lineno}: {problem.message}"
        ) from None
    except EmitError:
        raise
    except UnicodeDecodeError as problem:
        raise EmitError(f"the template {template} is not UTF-8 text (byte {problem.start})") from None
    except RecursionError:
        raise EmitError(f"the template {template} includes or extends itself without end") from None
    except TemplateError as problem:
        raise EmitError(f"{_where(problem.__traceback__, template)}: {problem.message}") from None
    except Exception as problem:  # a template is a program: whatever it raises is its author's error, with its line
        reason = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
        raise EmitError(f"{_where(problem.__traceback__, template)}: {reason}") from None
