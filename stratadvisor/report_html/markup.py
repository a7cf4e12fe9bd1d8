"""HTML that cannot be injected into: ``Html`` is what is already safe, ``e`` is the only way in for text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import NewType

Html = NewType("Html", str)
"""Text that is markup; made by the functions of this module and by the drawing ones, from escaped text only."""

_HOSTILE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff\ud800-\udfff]"
)
"""Controls, terminal codes, invisible and direction-turning characters, halves of surrogate pairs."""
_SPACE = re.compile(r"[\t\n\v\f\r ]+")
MAX_ROWS = 400


def clean(text: object) -> str:
    """Return text without characters that act instead of being shown; a run of white space becomes one space."""
    return _HOSTILE.sub("?", _SPACE.sub(" ", str(text)))


def short(text: object, limit: int = 28) -> str:
    """Return clean text that fits a drawing; the table beside it has it in full."""
    plain = clean(text)
    return plain if len(plain) <= limit else plain[: limit - 3].rstrip() + "..."


def unique(labels: Iterable[object], limit: int = 28) -> list[str]:
    """Return short labels, numbered where two would be the same."""
    found: list[str] = []
    for label in labels:
        base = name = short(label, limit) or "(no name)"
        number = 1
        while name in found:
            number += 1
            name = f"{base} ({number})"
        found.append(name)
    return found


def e(text: object) -> Html:
    """Return text as markup that shows it."""
    return Html(escape(clean(text), quote=True))


def join(parts: Iterable[Html]) -> Html:
    """Return markup one after the other."""
    return Html("".join(parts))


def tag(name: str, *content: Html, **attributes: str) -> Html:
    """Return an element; a trailing underscore of an attribute is dropped and other underscores become hyphens."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{e(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{''.join(content)}</{name}>")


def lines(items: Iterable[str], kind: str = "ul") -> Html:
    """Return a list of plain lines."""
    return tag(kind, *(tag("li", e(item)) for item in items))


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first cell of a row is its heading."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A drawing with its description and the table that says the same; ``svg`` None: nothing known to draw."""

    key: str
    title: str
    summary: str
    """What is to be seen, in words: the description for those who do not see it, and the caption."""
    table: Table
    svg: Html | None = None
    unknown: str = ""
    """Why there is nothing to draw."""
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    intro: Html = Html("")
    figures: tuple[Figure, ...] = ()
    beside: Html = Html("")
    """Stands in the grid with the figures."""


def table(content: Table, caption: str) -> Html:
    """Return a table; long ones end in a row that says how many were left out."""
    shown = content.rows[:MAX_ROWS]
    head = tag("tr", *(tag("th", e(column), scope="col") for column in content.columns))
    body = [tag("tr", tag("th", e(row[0]), scope="row"), *(tag("td", e(cell)) for cell in row[1:])) for row in shown]
    left = len(content.rows) - len(shown)
    if left:
        words = f"{left} more rows are left out; report --json has all"
        body.append(tag("tr", tag("td", e(words), colspan=str(len(content.columns)))))
    inner = tag("table", tag("caption", e(caption)), tag("thead", head), tag("tbody", *body))
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def figure(content: Figure) -> Html:
    """Return a figure: drawing, caption, and the same as a table."""
    if content.svg is not None:
        drawing = tag("div", content.svg, class_="drawing")
    else:
        drawing = tag("p", tag("strong", e("unknown")), e(f": {content.unknown}"), class_="unknown")
    rows = Html("")
    if content.table.rows:
        rows = tag(
            "details",
            tag("summary", e("The same as a table")),
            table(content.table, f"{content.title}, as a table"),
        )
    inner = (tag("h3", e(content.title)), drawing, tag("figcaption", e(content.summary)), rows)
    return tag("figure", *inner, id=content.key, class_="wide" if content.wide else "card")


def section(content: Section) -> Html:
    """Return a section with its figures in a grid."""
    cells = [figure(f) for f in content.figures]
    if content.beside:
        cells.append(tag("div", content.beside, class_="beside"))
    grid = tag("div", *cells, class_="grid") if cells else Html("")
    heading = tag("h2", e(content.title), id=f"{content.key}-title")
    return tag("section", heading, content.intro, grid, id=content.key)
