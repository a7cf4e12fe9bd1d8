"""Text that a terminal only shows: names of devices and hosts, rules and plans may come from a stranger's file."""

from __future__ import annotations

import re

_INVISIBLE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, with the one-byte forms of escape sequences
    r"\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"  # invisible, or turn the line round
    r"\ud800-\udfff"  # bytes of a file name that are no text
    r"\U000e0000-\U000e007f"  # tags: text that nobody sees
)
_UNSAFE = re.compile(f"[{_INVISIBLE}]")
MAX_SENTENCE = 2000


def printable(text: object) -> str:
    """Return text with nothing that moves a cursor, changes a terminal or hides; line breaks and tabs stay."""
    return _UNSAFE.sub("?", str(text))


def one_line(text: object) -> str:
    """Return ``printable`` text on one line: a name with a line break must not forge a line of its own."""
    return _UNSAFE.sub("?", " ".join(str(text).split("\n")).replace("\t", " "))


def sentence(text: str) -> str:
    """Return a message on one line and of bounded length."""
    line = one_line(text.strip())
    return line if len(line) <= MAX_SENTENCE else f"{line[:MAX_SENTENCE]} ..."


def safe_json(text: str) -> str:
    """Return the same JSON document with such characters escaped (they can stand in its strings only)."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2))
