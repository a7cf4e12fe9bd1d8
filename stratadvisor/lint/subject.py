"""The configuration under check, and the list that rules add to."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path as Folder
from typing import Any

from stratadvisor.lint.codes import CODES
from stratadvisor.lint.finding import Finding, Loader, Path, Severity, dotted
from stratadvisor.lint.json_lines import Places
from stratadvisor.lint.reader import read_config

AUTO = "auto"
_SHOWN = 60


@dataclass(slots=True, kw_only=True)
class Subject:
    """What rules see."""

    data: dict[Any, Any]
    places: Places
    world_size: int | None = None
    num_nodes: int | None = None
    loader: Loader = "unknown"
    folder: Folder | None = None
    """Where files that this one names are looked for; None looks for none."""
    file: str = ""
    """Name of such a file, when this is one."""
    prefix: Path = ()
    """Where ``data`` lies in the file: a DeepSpeed section inside another configuration."""
    findings: list[Finding] = field(default_factory=list)

    def at(self, *path: str) -> Any:
        """Return the value at a path, None when it is absent or something on the way is no mapping."""
        value: Any = self.data
        for key in path:
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return value

    def section(self, *path: str) -> dict[Any, Any]:
        """Return the mapping at a path, empty when there is none."""
        value = self.at(*path)
        return value if isinstance(value, dict) else {}

    def has(self, *path: str) -> bool:
        """Whether the path is written in the file."""
        *above, last = path
        return last in self.section(*above)

    def report(
        self,
        code: str,
        path: Path,
        message: str,
        fix: str = "",
        *,
        since: str = "",
        source: str = "",
        severity: Severity | None = None,
    ) -> None:
        """Add a finding."""
        kind = CODES[code]
        where = self.prefix + path
        self.findings.append(
            Finding(
                code=code,
                severity=severity or kind.severity,
                path=dotted(where),
                line=self.places.lines.get(where),
                message=message,
                fix=fix,
                since=since,
                source=source or kind.source,
                file=self.file,
            )
        )

    def inner(self, *path: str) -> Subject:
        """Return a part of the file as a subject of its own; its findings come here."""
        return Subject(
            data=self.section(*path),
            places=self.places,
            world_size=self.world_size,
            num_nodes=self.num_nodes,
            loader=self.loader,
            folder=self.folder,
            file=self.file,
            prefix=self.prefix + path,
            findings=self.findings,
        )

    def named(self, name: object) -> Subject | None:
        """Return the file that a value names, when it lies beside this one or below; its findings come here.

        Raises:
            UsageError: it is there, but cannot be read.

        """
        if self.folder is None or not isinstance(name, str):
            return None
        base = self.folder.resolve()
        try:
            path = (base / name).resolve()
            if not path.is_relative_to(base) or not path.is_file():
                return None
        except (OSError, ValueError, RuntimeError):  # too long, a zero byte, links in a circle
            return None
        read = read_config(path)
        return Subject(
            data=read.data,
            places=read.places,
            world_size=self.world_size,
            num_nodes=self.num_nodes,
            loader=self.loader,
            file=str(self.folder / name),
            findings=self.findings,
        )


def shown(value: object) -> str:
    """Return a value as text for a message, cut."""
    text = "true" if value is True else "false" if value is False else "null" if value is None else str(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def number(value: object) -> float | None:
    """Return a finite number, None for anything else; true and false are not numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def whole(value: object) -> int | None:
    """Return a whole number, None for anything else."""
    result = number(value)
    return int(result) if result is not None and result == int(result) else None


def enabled(section: dict[Any, Any]) -> bool:
    """Whether a section has ``enabled: true``."""
    return section.get("enabled") is True


def nearest(key: object, names: frozenset[str] | tuple[str, ...] | list[str], cutoff: float = 0.75) -> str:
    """Return the name that a key was probably meant to be, or nothing."""
    near = difflib.get_close_matches(str(key)[:80], sorted(names), n=1, cutoff=cutoff)
    return near[0] if near else ""


def meant(key: object, names: frozenset[str] | tuple[str, ...] | list[str]) -> str:
    """Return advice that names the nearest key, or to delete this one."""
    near = nearest(key, names)
    return f"{near}, if that was meant" if near else "delete it"
