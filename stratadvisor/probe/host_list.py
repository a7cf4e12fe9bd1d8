"""Names of nodes as Slurm and ClusterShell write them: ``node[01-16,20],login``."""

from __future__ import annotations

import itertools
import re

from stratadvisor.errors import UsageError

MAX_HOSTS = 4096
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:][A-Za-z0-9_.:-]*")
"""What ssh may be given: a name, an address or a name of its configuration, with a user; never an option."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_SHOWN = 60


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the names of a list, in order and each once.

    Raises:
        UsageError: not such a list, a name that ssh could take for an option, or more names than 4096.

    """
    found: dict[str, None] = {}
    for word in _split(text):
        for name in _expand(word, text):
            if not _NAME.fullmatch(name):
                raise UsageError(f"--hosts: {name[:_SHOWN]!r} is not the name of a host")
            found[name] = None
            if len(found) > MAX_HOSTS:
                raise UsageError(f"--hosts names more than {MAX_HOSTS} hosts", hint="use srun or torchrun there")
    if not found:
        raise UsageError("--hosts names no host", hint="for example --hosts node[01-16]")
    return tuple(found)


def _split(text: str) -> list[str]:
    """Split at commas and blanks outside brackets."""
    return [word for word in re.split(r"[,\s]+(?![^\[\]]*\])", text) if word]


def _expand(word: str, text: str) -> list[str]:
    pieces: list[list[str]] = []
    for part in re.split(r"(\[[^\[\]]*\])", word):
        if part.startswith("["):
            pieces.append(_numbers(part[1:-1], text))
        elif "[" in part or "]" in part:
            raise UsageError(f"--hosts: a bracket of {text[:_SHOWN]!r} is not closed or not opened")
        elif part:
            pieces.append([part])
    total = 1
    for piece in pieces:
        total *= len(piece)
    if total > MAX_HOSTS:
        raise UsageError(f"--hosts names more than {MAX_HOSTS} hosts", hint="use srun or torchrun there")
    return ["".join(chosen) for chosen in itertools.product(*pieces)]


def _numbers(inside: str, text: str) -> list[str]:
    """Return the numbers of ``01-16,20``, with the zeros in front that the first one of a range has."""
    found: list[str] = []
    for item in inside.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise UsageError(
                f"--hosts: {item[:_SHOWN]!r} of {text[:_SHOWN]!r} is not a number or a range of numbers",
                hint="for example node[01-16,20]",
            )
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise UsageError(f"--hosts: the range {item[:_SHOWN]!r} counts backwards")
        if int(last) - int(first) >= MAX_HOSTS:
            raise UsageError(f"--hosts names more than {MAX_HOSTS} hosts", hint="use srun or torchrun there")
        found += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return found
