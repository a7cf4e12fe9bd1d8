"""Standard error for people: messages, progress. Standard output carries results only."""

from __future__ import annotations

import sys
from collections.abc import Callable

from stratadvisor.plain import one_line, safe_json, sentence


def show_error(message: str, *hints: str) -> None:
    """Print one error sentence, and what to do next."""
    print(f"stratadvisor: {sentence(message)}", file=sys.stderr)  # noqa: T201
    for hint in hints:
        if hint:
            print(f"  {sentence(hint)}", file=sys.stderr)  # noqa: T201


def note(message: str) -> None:
    """Print one line of progress or prose."""
    print(one_line(message), file=sys.stderr, flush=True)  # noqa: T201


def echo_json(text: str) -> None:
    """Print a JSON document on standard output."""
    print(safe_json(text).rstrip("\n"))  # noqa: T201


def progress_line(quiet: bool = False) -> Callable[[str, float | None], None]:
    """Return a progress callback: a line that is rewritten on a terminal, plain lines when piped."""
    terminal = sys.stderr.isatty()
    last = ""

    def show(what: str, fraction: float | None) -> None:
        nonlocal last
        text = one_line(what) if fraction is None else f"{fraction:4.0%} {one_line(what)}"
        if quiet or text == last:
            return
        last = text
        if terminal:
            sys.stderr.write(f"\r\x1b[K{text[:78]}")
            if fraction is not None and fraction >= 1:
                sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        else:
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    return show
