"""What a check found, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""error: the framework refuses it, or the run cannot do what the file says. warning: accepted, but ignored, about to go
or not what it seems. note: worth knowing, nothing is wrong."""
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Kind = Literal["deepspeed", "accelerate", "lightning", "transformers"]
Loader = Literal["unknown", "none", "transformers", "accelerate", "lightning"]
"""Who reads a DeepSpeed file: a plain script (none), or a library that fills its "auto" values."""
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem of a configuration."""

    code: str
    """Stable: see ``codes.CODES``."""
    severity: Severity
    path: str
    """Dotted place in the file; empty for the file as a whole."""
    line: int | None
    message: str
    fix: str = ""
    """What to write instead."""
    since: str = ""
    """Release that changed it, where there is one."""
    source: str = ""
    file: str = ""
    """Another file that the checked one names, where the problem is in that one."""


def dotted(path: Path) -> str:
    """Return a path as people write it: ``zero_optimization.stage``, ``devices[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
