"""``python -m stratadvisor.reference [FOLDER]``: write the generated pages below a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from stratadvisor.reference.man import manual
from stratadvisor.reference.pages import pages


def generated() -> dict[str, str]:
    """Return path below the checkout -> text of everything that is generated."""
    return {f"docs/reference/{name}": text for name, text in pages().items()} | {"man/stratadvisor.1": manual()}


def main(root: Path) -> None:
    """Write every page."""
    for name, text in generated().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
