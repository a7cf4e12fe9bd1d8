"""The console that every screen prints to: 80 columns when piped, no colour when piped or NO_COLOR is set."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from stratadvisor.plain import one_line

PIPED_WIDTH = 80
MAX_WIDTH = 110


def console() -> Console:
    """Return a console on standard output."""
    plain = Console(file=sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=False)
    width = min(plain.width, MAX_WIDTH) if plain.is_terminal else PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, markup=False, emoji=False, width=width)


def safe(text: object) -> str:
    """Return one line without terminal control characters; names may come from a stranger's file."""
    return one_line(text)


def heading(text: str) -> Text:
    """Return a section title."""
    return Text(safe(text), style="bold")


def wrapped(out: Console, text: str, *, indent: int = 2, hang: int = 2, style: str = "") -> None:
    """Print text wrapped at the console's width, continuation lines indented further."""
    import textwrap

    lines = textwrap.wrap(
        safe(text),
        width=out.width - 1,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_on_hyphens=False,
    )
    for line in lines:
        out.print(Text(line, style=style))
