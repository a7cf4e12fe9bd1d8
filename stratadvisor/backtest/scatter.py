"""Predicted against measured as one SVG: logarithmic axes, the diagonal, a corridor of a tenth on both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

SIDE, MARGIN = 420.0, 60.0
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's palette: told apart by colour-blind readers as well."""
MAX_GROUPS = len(COLORS)


def draw(points: Sequence[tuple[str, float, float]], what: str) -> str:
    """Return the picture.

    Args:
        points: group, measured, predicted; at least one, all positive.
        what: quantity with unit, for the axes.

    """
    values = [v for _, x, y in points for v in (x, y)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def place(value: float) -> float:
        return SIDE * (math.log10(value) - low) / (high - low)

    groups = list(dict.fromkeys(name for name, _, _ in points))
    shown = groups[: MAX_GROUPS - 1] if len(groups) > MAX_GROUPS else groups
    height = SIDE + 2 * MARGIN + 18 * (len(shown) + (len(groups) > len(shown)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE + 2 * MARGIN:.0f} {height:.0f}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>Predicted against measured {escape(what)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<g transform="translate({MARGIN:.0f},{MARGIN / 3:.0f})">',
    ]
    for power in range(low, high + 1):
        at = place(10.0**power)
        label = f"{10.0**power:g}"
        parts += [
            f'<path d="M{at:.1f} 0V{SIDE:.0f}M0 {SIDE - at:.1f}H{SIDE:.0f}" stroke="#dddddd" fill="none"/>',
            f'<text x="{at:.1f}" y="{SIDE + 16:.0f}" text-anchor="middle">{label}</text>',
            f'<text x="-6" y="{SIDE - at + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    tenth = SIDE * math.log10(1.1) / (high - low)
    parts += [
        f'<path d="M0 {SIDE:.1f}L{SIDE:.1f} 0" stroke="#555555"/>',
        f'<path d="M0 {SIDE - tenth:.1f}L{SIDE - tenth:.1f} 0M{tenth:.1f} {SIDE:.1f}L{SIDE:.1f} {tenth:.1f}" '
        'stroke="#999999" stroke-dasharray="4 3"/>',
        f'<text x="{SIDE / 2:.0f}" y="{SIDE + 34:.0f}" text-anchor="middle">measured {escape(what)}</text>',
        f'<text transform="translate(-44,{SIDE / 2:.0f})rotate(-90)" text-anchor="middle">'
        f"predicted {escape(what)}</text>",
    ]
    for name, x, y in points:
        color = COLORS[shown.index(name)] if name in shown else "#999999"
        parts.append(
            f'<circle cx="{place(x):.1f}" cy="{SIDE - place(y):.1f}" r="3" fill="{color}" fill-opacity="0.6"/>'
        )
    legend = [(COLORS[i], name) for i, name in enumerate(shown)]
    if len(groups) > len(shown):
        legend.append(("#999999", f"{len(groups) - len(shown)} other groups"))
    for i, (color, name) in enumerate(legend):
        y = SIDE + 56 + 18 * i
        parts.append(f'<circle cx="5" cy="{y - 4:.0f}" r="4" fill="{color}"/>')
        parts.append(f'<text x="14" y="{y:.0f}">{escape(name)}</text>')
    parts.append("</g></svg>\n")
    return "\n".join(parts)
