"""Where shipped rules and templates lie: inside the wheel, or at the top of a checkout (editable installs too)."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Literal

from stratadvisor.errors import StratadvisorError

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable
else:
    from importlib.abc import Traversable


def bundled(kind: Literal["rules", "templates"]) -> Traversable:
    """Return the folder of shipped rules or templates.

    Raises:
        StratadvisorError: neither place has it; the installation is damaged.

    """
    package = files("stratadvisor")
    inside = package / "_bundled" / kind
    if inside.is_dir():
        return inside
    checkout = Path(str(package)).parent
    if (checkout / "pyproject.toml").is_file() and (checkout / kind).is_dir():
        return checkout / kind
    raise StratadvisorError(
        f"the shipped {kind} are neither in {inside} nor in {checkout / kind}",
        hint="reinstall stratadvisor: the installation is incomplete",
    )
