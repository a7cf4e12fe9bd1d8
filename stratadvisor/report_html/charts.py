"""Vega-Lite charts as SVG through vl-convert: no browser, no network, one look."""

from __future__ import annotations

import math
import re
from typing import Any

from stratadvisor.errors import StratadvisorError
from stratadvisor.report_html import theme
from stratadvisor.report_html.markup import Html, clean, e

Spec = dict[str, Any]
WIDTH = 290
"""Of the plot itself, in drawing units; with labels it comes to about 420: a phone shows that nearly in full size."""
FONT = "sans-serif"
_PADDING = {"left": 22, "right": 10, "top": 4, "bottom": 4}
"""The reader's sans-serif may be a seventh wider than the one that labels were measured with."""
MAX_TICKS = 6
TINY, HUGE = 1e-300, 1e300
"""What a logarithmic axis can still be labelled with."""
_ROOT = re.compile(r'^<svg [^>]*?viewBox="0 0 ([0-9.]+) ([0-9.]+)"[^>]*>')
_EMPTY = re.compile(r'<path class="(?:background|foreground)"[^>]*? d="(?:M0,0h0v0h0Z)?"[^>]*/>')
_NOISE = re.compile(r' (?:pointer-events="none"|class="[^"]*"|role="[^"]*"|aria-[a-z]+="[^"]*"|opacity="1")')
_CONFIG: Spec = {
    "aria": False,
    "background": None,
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domainColor": theme.QUIET.light,
        "tickColor": theme.QUIET.light,
        "gridColor": theme.LINE.light,
        "labelColor": theme.INK.light,
        "titleColor": theme.QUIET.light,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 170,
    },
    "legend": {
        "labelColor": theme.INK.light,
        "titleColor": theme.QUIET.light,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
        "orient": "bottom",
        "direction": "horizontal",
        "symbolStrokeWidth": 0,
        "columnPadding": 24,  # for a sans-serif that is wider than the measured one
    },
    "text": {"color": theme.INK.light, "fontSize": 12, "font": FONT},
}


def require_library() -> None:
    """Fail early where the charting library is missing.

    Raises:
        StratadvisorError: vl-convert is not installed.

    """
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise StratadvisorError(
            "charts need vl-convert-python, which is not installed",
            hint="pip install vl-convert-python (the extra 'report' of this package brings it)",
        ) from None


def draw(key: str, title: str, summary: str, spec: Spec) -> Html:
    """Return a Vega-Lite spec as an SVG with title and description.

    Raises:
        StratadvisorError: the library is missing, or cannot draw these numbers.

    """
    require_library()
    import vl_convert

    whole = {"config": _CONFIG, "padding": _PADDING, **_clean(spec)}
    try:
        svg = str(vl_convert.vegalite_to_svg(whole, allowed_base_urls=[]))
    except ValueError as problem:
        reason = clean(problem)[:200]
        raise StratadvisorError(f"the chart {title[:60]!r} cannot be drawn: {reason}") from None
    root = _ROOT.match(svg)
    if root is None:
        raise StratadvisorError("the charting library returned no drawing", hint="update vl-convert-python")
    body = svg[root.end() :].removesuffix("</svg>")
    body = _NOISE.sub("", _EMPTY.sub("", body))
    return wrap(key, title, summary, float(root.group(1)), float(root.group(2)), Html(body))


def wrap(key: str, title: str, summary: str, width: float, height: float, body: Html) -> Html:
    """Return drawing elements as an SVG that scales down, and says what it is."""
    return Html(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img"'
        f' font-family="{FONT}" aria-labelledby="{key}-name {key}-words"><title id="{key}-name">{e(title)}</title>'
        f'<desc id="{key}-words">{e(summary)}</desc>{body}</svg>'
    )


def _clean(value: Any) -> Any:
    """Return a spec whose texts hold no character that acts."""
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return clean(value) if isinstance(value, str) else value


def rows(values: list[dict[str, Any]]) -> Spec:
    """Return inline data."""
    return {"values": values}


def quantity(field: str, title: str | None, **more: Any) -> Spec:
    """Return an encoding of a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def names(field: str, order: list[str], title: str | None = None, **more: Any) -> Spec:
    """Return an encoding of names in a given order."""
    return {"field": field, "type": "nominal", "title": title, "sort": order, **more}


PLAIN = {"labelExpr": "format(datum.value, '~g')"}
"""Numbers without needless zeros or powers; an axis' own format would round by the distance of its ticks."""


def whole_ticks(first: int, last: int) -> list[int]:
    """Return equally spaced whole numbers, no more than an axis has room for."""
    every = max(1, -(-(last - first) // MAX_TICKS))
    return list(range(first, last + 1, every))


def round_ticks(lowest: float, highest: float) -> list[float]:
    """Return round numbers on a logarithmic axis: 1, 2, 5 of each decade, fewer where there are many."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [s * 10.0**p for p in range(first, last + 1) for s in steps]
        inside = [v for v in found if lowest <= v <= highest]
        if len(inside) <= MAX_TICKS:
            return inside
    return inside[:: -(-len(inside) // MAX_TICKS)]


def time_unit(longest: float) -> tuple[float, str]:
    """Return the seconds of a unit that suits durations up to ``longest``, and its name."""
    units = (
        (172800.0, 86400.0, "days"), (7200.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (1.0, 1.0, "seconds"),
        (1e-3, 1e-3, "milliseconds"),
    )  # fmt: skip
    return next(((unit, sign) for least, unit, sign in units if longest >= least), (1e-6, "microseconds"))


def logarithmic(lowest: float, highest: float) -> Spec:
    """Return a logarithmic scale that holds two positive numbers with some room."""
    return {"type": "log", "domain": [max(lowest, TINY) / 1.15, min(highest, HUGE) * 1.15], "nice": False}
