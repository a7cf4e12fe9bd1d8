"""Commands and their options as data, read from the functions that the command line runs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

_VALUES: dict[Any, str] = {str: "TEXT", int: "N", float: "NUMBER", Path: "PATH"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument or option."""

    names: tuple[str, ...]
    """``("--output", "-o")``, or the one name of an argument."""
    value: str
    """``TEXT``, ``PATH``, ...; empty for a switch."""
    default: str
    """As it is typed; empty for none and for switches."""
    help: str
    required: bool
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command."""

    name: str
    """``rules show``."""
    summary: str
    help: str
    example: str
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]

    @property
    def usage(self) -> str:
        """``stratadvisor explain [OPTIONS] [PLAN]``."""
        words = ["stratadvisor", self.name, "[OPTIONS]"]
        for argument in self.arguments:
            name = argument.names[0].upper() + ("..." if argument.repeated else "")
            words.append(name if argument.required else f"[{name}]")
        return " ".join(words)


def commands(app: typer.Typer, above: str = "") -> Iterator[Command]:
    """Yield every command of an application and of the groups below it, in the order of its help."""
    for info in app.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__.replace("_", "-")
        text = info.help or inspect.getdoc(info.callback) or ""
        found = list(_parameters(info.callback))
        yield Command(
            name=f"{above}{name}",
            summary=info.short_help or text.partition(". ")[0].partition("\n")[0],
            help=" ".join(text.split()),
            example=(info.epilog or "").removeprefix("Example: ") if (info.epilog or "").startswith("Example") else "",
            arguments=tuple(p for p, kind in found if kind is ArgumentInfo),
            options=tuple(p for p, kind in found if kind is OptionInfo),
        )
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from commands(group.typer_instance, f"{above}{group.name} ")


def _parameters(function: Callable[..., Any]) -> Iterator[tuple[Parameter, type]]:
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(hints[name]) is not Annotated:
            continue
        kind, info, *_ = get_args(hints[name])
        if not isinstance(info, OptionInfo | ArgumentInfo):
            continue
        inner, repeated = _inner(kind)
        default = parameter.default
        required = default is inspect.Parameter.empty
        switch = inner is bool
        shown = "" if required or switch or default is None else str(default)
        # inside Annotated, typer keeps the first name where a default would stand
        declared = (info.default, *(info.param_decls or ())) if isinstance(info, OptionInfo) else (name,)
        names = tuple(name for text in declared if isinstance(text, str) for name in text.split("/"))
        found = Parameter(
            names=names or (f"--{name.replace('_', '-')}",),
            value="" if switch else _VALUES.get(inner, "TEXT"),
            default=shown,
            help=" ".join((info.help or "").split()),
            required=required,
            repeated=repeated,
        )
        yield found, type(info)


def _inner(kind: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether several may be given: ``list[Path] | None`` -> ``Path, True``."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is list:
        return get_args(kind)[0], True
    return kind, False
