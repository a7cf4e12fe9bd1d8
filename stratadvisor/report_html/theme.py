"""Colours and the style sheet: each drawing is made in light colours, and the style sheet turns them for the dark.

A drawing names its colours in ``fill`` and ``stroke`` attributes, which a style sheet may override; so one drawing
serves screens, dark screens and paper, without script and without a second copy.
"""

from __future__ import annotations

from typing import NamedTuple


class Tone(NamedTuple):
    """A colour on light and on dark ground."""

    light: str
    dark: str


GROUND = Tone("#ffffff", "#14171c")
INK = Tone("#1f2329", "#e9ecf0")
QUIET = Tone("#566070", "#a7b1bf")
LINE = Tone("#d3d8df", "#3a424d")
PANEL = Tone("#f4f6f9", "#1d222a")
LIT = Tone("#0b5fb0", "#6cb4ff")
LIT_GROUND = Tone("#e1eefb", "#15324f")
BAND = Tone("#a9cdf2", "#2f5f92")
MEASURED = Tone("#b4490a", "#f79d5c")
GOOD = Tone("#17703a", "#5fd08a")
BAD = Tone("#b3202e", "#ff8a92")
UNKNOWN = Tone("#e3e6ea", "#333a44")

CATEGORIES = (
    Tone("#0e62b4", "#5fabf2"),
    Tone("#bd560b", "#f2954f"),
    Tone("#0d7d70", "#3fc3b1"),
    Tone("#7a49be", "#b596f0"),
    Tone("#ba2a39", "#f27a85"),
    Tone("#6a6e0f", "#bdc14e"),
    Tone("#b5368f", "#ee8ad4"),
    Tone("#85563a", "#cb9e7d"),
    Tone("#4b7d1c", "#96cf5e"),
    Tone("#5f6978", "#a1acba"),
)
"""Kinds that stand side by side."""

HEAT = ("#dce9f8", "#b4d2f0", "#80b2e4", "#2f73bf", "#1a5ba6", "#0a3a73")
"""Slow to fast; the same on both grounds, since each cell carries its own ink."""
HEAT_INK = ("#0c0e11", "#0c0e11", "#0c0e11", "#fdfdfe", "#fdfdfe", "#fdfdfe")

TURNED = (INK, QUIET, LINE, PANEL, LIT, LIT_GROUND, BAND, MEASURED, GOOD, BAD, UNKNOWN, GROUND, *CATEGORIES)
NAMES = ("ground", "ink", "quiet", "line", "panel", "lit", "lit-ground", "band", "measured", "good", "bad", "unknown")
NAMED = dict(
    zip(
        NAMES,
        (GROUND, INK, QUIET, LINE, PANEL, LIT, LIT_GROUND, BAND, MEASURED, GOOD, BAD, UNKNOWN),
        strict=True,
    )
)

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:auto}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
main,header,footer,nav{max-width:1120px;margin:0 auto;padding:0 16px}
header{padding-top:28px}
h1{font-size:1.65rem;line-height:1.25;margin:.2em 0}
h2{font-size:1.3rem;margin:2.2em 0 .5em;padding-top:.6em;border-top:1px solid var(--line)}
h3{font-size:1.02rem;margin:0 0 .6em}
a{color:var(--lit)}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--lit);outline-offset:2px}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:.8em 0}
.quiet,figcaption,.origin{color:var(--quiet)}
.origin{font-size:.84em;white-space:nowrap}
.lead{font-size:1.08rem;margin:.3em 0}
.numbers{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,215px),1fr));gap:12px;
padding:0;margin:1.2em 0}
.numbers>div{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.numbers dt{color:var(--quiet);font-size:.9rem}
.numbers dd{margin:0}
.numbers .value{font-size:1.3rem;font-weight:650;display:block}
.numbers .range{font-size:.9rem;display:block}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,470px),1fr));gap:18px;align-items:start}
figure{margin:0;min-width:0;background:var(--panel);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
figure.wide{grid-column:1/-1}
.beside{min-width:0}
.beside h3{margin-top:.8em}
.drawing{background:var(--ground);border-radius:8px;padding:8px}
.drawing svg{display:block;max-width:100%;height:auto;margin:0 auto}
figcaption{font-size:.92rem;margin-top:.7em}
details{margin-top:.6em}
summary{cursor:pointer;color:var(--lit)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.88rem;width:100%;margin-top:.5em}
caption{text-align:left;color:var(--quiet);padding:4px 0}
th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0;border-bottom:1px solid var(--line);
overflow-wrap:normal;min-width:4.5em}
thead th{border-bottom:2px solid var(--line)}
.unknown{background:var(--unknown);border:2px dashed var(--quiet);border-radius:8px;padding:14px;margin:0}
.problem{border-left:5px solid var(--bad);padding-left:10px}
.warning{border-left:5px solid var(--measured);padding-left:10px}
.info{border-left:5px solid var(--line);padding-left:10px}
.good{color:var(--good)}
.bad{color:var(--bad)}
ol.path{padding-left:1.6em}
ol.path li{margin:.5em 0}
.taken{font-weight:650;color:var(--lit)}
code{font:.9em ui-monospace,"DejaVu Sans Mono",monospace}
footer{padding-top:1.5em;padding-bottom:3em;color:var(--quiet);font-size:.88rem}
@media (max-width:560px){body{font-size:15px}main,header,footer,nav{padding-left:10px;padding-right:10px}
figure{padding:8px}.drawing{padding:2px}h1{font-size:1.4rem}}
@media print{body{font-size:11px}nav{display:none}figure,.numbers>div{break-inside:avoid;background:none}
details::details-content{content-visibility:visible;block-size:auto}summary{display:none}h2{break-after:avoid}
.grid{display:block}figure{margin-bottom:14px}.scroll{overflow:visible}table{font-size:9px}
th,td{min-width:0;overflow-wrap:anywhere}header th{white-space:nowrap;overflow-wrap:normal;font-size:10px}}
"""


def _variables(dark: bool) -> str:
    return ":root{" + "".join(f"--{n}:{t.dark if dark else t.light};" for n, t in NAMED.items()) + "}"


def _turned() -> str:
    return "".join(
        f'svg [fill="{t.light}"]{{fill:{t.dark}}}svg [stroke="{t.light}"]{{stroke:{t.dark}}}' for t in TURNED
    )


def style_sheet() -> str:
    """Return the whole style sheet; paper is always light."""
    rules = _RULES.strip()
    dark = "@media screen and (prefers-color-scheme:dark){" + _variables(True) + _turned() + "}"
    paper = "@media print{:root{color-scheme:light}}"
    return f":root{{color-scheme:light dark}}{_variables(False)}\n{rules}\n{dark}\n{paper}"
