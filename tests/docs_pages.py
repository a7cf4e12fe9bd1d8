"""Reads the documents: links, code blocks, commands.

A block marked ``console`` holds commands that a test runs as they stand; one marked ``bash`` needs a cluster, and only
its options are looked at. A ``toml`` or ``jinja`` block whose first line is ``# PATH`` is that file.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(text: str, *kinds: str) -> list[str]:
    return [body for kind, body in _BLOCK.findall(text) if kind in kinds]


def links(text: str) -> list[str]:
    outside = re.sub(r"`[^`\n]*`", "", _BLOCK.sub("", text))
    return [target for target in _LINK.findall(outside) if "://" not in target and not target.startswith("mailto:")]


def anchors(text: str) -> set[str]:
    """Return what headings are called in a link, as both GitHub and MkDocs do it."""
    titles = re.findall(r"^#+ +(.+?) *$", _BLOCK.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def commands(body: str) -> list[list[str]]:
    """Return the command lines of a block, as a shell would split them."""
    joined = body.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def mentioned(text: str) -> list[list[str]]:
    """Return every stratadvisor command of a page: in blocks, also behind a launcher, and in running text."""
    found = [words for body in blocks(text, "console", "bash") for words in commands(body)]
    inside = re.findall(r"(?<!`)`(stratadvisor [^`\n]+)`", _BLOCK.sub("", text))
    found += [shlex.split(code, comments=True) for code in inside]
    return [words[words.index("stratadvisor") :] for words in found if "stratadvisor" in words]


def files_of(text: str) -> dict[str, str]:
    """Return path -> content of the files that a page shows."""
    found = {}
    for body in blocks(text, "toml", "jinja"):
        first, _, rest = body.partition("\n")
        if re.fullmatch(r"# [\w./-]+\.\w+", first):
            found[first[2:]] = rest
    saved = re.findall(r"^Saved as `([\w.]+)`", text, re.MULTILINE)
    return found | dict(zip(saved, blocks(text, "json"), strict=False))
