"""What came in, on disk as it comes: one JSON object a line, read again by ``probe --merge``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from stratadvisor.errors import ProfileError
from stratadvisor.probe.nodes.conductor import Found
from stratadvisor.probe.nodes.measured import Link
from stratadvisor.probe.nodes.messages import Hello
from stratadvisor.schema.profile import MAX_COUNT, ClusterProfile

SUFFIX = ".partial"
_FIRST = {"kind": "stratadvisor-probe", "version": 1}


class Journal:
    """The file of one probe; it lies beside the profile that it becomes."""

    def __init__(self, output: Path) -> None:
        self.path = output.with_name(output.name + SUFFIX)
        self._file: IO[str] | None = None

    def note(self, kind: str, content: dict[str, Any]) -> None:
        """Append a line; a full or read-only disk costs the journal, not the probe."""
        try:
            if self._file is None:
                self._file = self.path.open("w", encoding="utf-8")
                self._line(_FIRST)
            self._line({"kind": kind, **content})
        except OSError:
            self._file = None

    def _line(self, content: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(content, separators=(",", ":")) + "\n")
        self._file.flush()

    def remove(self) -> None:
        """The profile is written: the journal has served."""
        if self._file is not None:
            self._file.close()
        self.path.unlink(missing_ok=True)


def is_journal(text: str) -> bool:
    """Whether a file is a journal and no profile."""
    return text.startswith('{"kind":"stratadvisor-probe"')


def read_journal(text: str, path: Path) -> Found:
    """Return what a journal holds; a last line that was cut off is left out.

    Raises:
        ProfileError: it is damaged, or holds no node.

    """
    found = Found()
    lines = text.splitlines()
    for number, line in enumerate(lines[1:], 2):
        try:
            _take(json.loads(line), found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ValidationError):
            if number == len(lines):
                break
            raise ProfileError(f"{path}, line {number}: not a line of a probe's journal") from None
    if not found.profiles:
        raise ProfileError(f"{path} holds no node yet", hint="probe again")
    found.planned = tuple(sorted(found.profiles))
    found.links = [link for link in found.links if set(link.ends) <= set(found.profiles)]
    return found


def _take(content: dict[str, Any], found: Found) -> None:
    kind = content.pop("kind")
    if kind == "node":
        rank, profile = _rank(content["rank"]), ClusterProfile.model_validate_json(content["document"])
        if len(profile.nodes) != 1:
            raise ValueError("not one node")
        found.profiles[rank] = profile
        found.hellos[rank] = Hello(rank=rank, hostname=profile.nodes[0].hostname[:255])
    elif kind == "link":
        found.links.append(_link(content))
        found.num_rounds = max(found.num_rounds, found.links[-1].round + 1)
    elif kind == "lost":
        found.lost[_rank(content["rank"])] = str(content["reason"])[:500]
    elif kind == "failed":
        found.failed.append((_rank(content["a"]), _rank(content["b"]), str(content["reason"])[:500]))
    elif kind == "sweep":
        found.sweep = content["times"]


def _rank(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < MAX_COUNT:
        raise ValueError("not a rank")
    return value


def _rate(value: Any) -> float:
    rate = float(value)
    if not 1e-9 <= rate <= 1e15:
        raise ValueError("not a rate")
    return rate


def _link(content: dict[str, Any]) -> Link:
    stated = tuple(None if rate is None else _rate(rate) for rate in content["stated"])
    names = tuple(str(name)[:64] for name in content["interfaces"])
    return Link(
        round=_rank(content["round"]),
        kind=str(content["kind_of_round"]),
        a=_rank(content["a"]),
        b=_rank(content["b"]),
        forward=_rate(content["forward"]),
        backward=_rate(content["backward"]),
        latency_seconds=min(1e6, max(0.0, float(content["latency_seconds"]))),
        points=tuple((_rank(size), 1 / _rate(1 / float(seconds))) for size, seconds in content["points"]),
        interfaces=(names[0], names[1]),
        stated=(stated[0], stated[1]),
    )
