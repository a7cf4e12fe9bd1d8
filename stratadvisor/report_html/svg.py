"""Drawings that are no charts: boxes, lines and text in drawing units."""

from __future__ import annotations

from stratadvisor.report_html import theme
from stratadvisor.report_html.markup import Html, e, short

CHARACTER = 0.56
"""Mean width of a character of a sans-serif face, as a share of its size."""


def fits(text: object, width: float, size: float = 12) -> str:
    """Return text cut to a width."""
    return short(text, max(4, int(width / (size * CHARACTER))))


def words(
    x: float, y: float, text: object, *, size: float = 12, fill: str = theme.INK.light, anchor: str = "start",
    bold: bool = False,
) -> Html:  # fmt: skip
    """Return a line of text; y is its base line."""
    weight = ' font-weight="600"' if bold else ""
    turn = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return Html(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{turn}{weight}>{e(text)}</text>')


def box(
    x: float, y: float, width: float, height: float, *, fill: str = "none", stroke: str = theme.LINE.light,
    thick: float = 1, dashed: bool = False, round_: float = 6,
) -> Html:  # fmt: skip
    """Return a rounded rectangle."""
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return Html(
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_:g}" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="{thick:g}"{dash}/>'
    )


def line(points: list[tuple[float, float]], *, stroke: str = theme.QUIET.light, thick: float = 1.5) -> Html:
    """Return a line through points."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return Html(
        f'<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{thick:g}" stroke-linejoin="round"/>'
    )


def arrow_head(x: float, y: float, *, fill: str = theme.QUIET.light) -> Html:
    """Return a head that points down and ends at (x, y)."""
    return Html(f'<path d="M{x:g},{y:g}l-4.5,-8h9Z" fill="{fill}"/>')


def left_head(x: float, y: float, *, fill: str = theme.QUIET.light) -> Html:
    """Return a head that points left and ends at (x, y)."""
    return Html(f'<path d="M{x:g},{y:g}l8,-4.5v9Z" fill="{fill}"/>')


def wrap_words(text: object, width: float, size: float = 12, most: int = 3) -> list[str]:
    """Return text in lines of a width, at most ``most``, the last one cut."""
    import textwrap

    room = max(6, int(width / (size * CHARACTER)))
    found = textwrap.wrap(short(text, 400), room) or [""]
    return found if len(found) <= most else [*found[: most - 1], short(" ".join(found[most - 1 :]), room)]
