"""Plug-ins: what installed distributions add through entry points, each loaded on its own, a broken one named.

The groups are those of ``GROUPS``. Nothing is imported before it is needed, and looking for plug-ins reads only the
``entry_points.txt`` of what is installed (a few milliseconds), not importlib.metadata, whose import alone costs more.
``STRATADVISOR_NO_PLUGINS=1`` leaves all of them out.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

GROUPS = ("stratadvisor.probes", "stratadvisor.strategies", "stratadvisor.rules", "stratadvisor.targets")
FOLDERS = {"stratadvisor.rules": "rules", "stratadvisor.targets": "templates"}
"""Groups whose plug-ins are packages with a folder of files; nothing of them is imported."""
MAX_BYTES = 256 * 1024
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One entry point."""

    group: str
    name: str
    value: str
    """``package.module:OBJECT``, or ``package`` for a folder."""
    distribution: str
    """``name-version``, as its metadata folder is called."""

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"plug-in {self.name!r} of {self.distribution} ({self.group})"


_problems: dict[Plugin, str] = {}


@cache
def installed() -> tuple[Plugin, ...]:
    """Return every plug-in that is installed, in the order of the search path; the first of a name counts."""
    if os.environ.get("STRATADVISOR_NO_PLUGINS"):
        return ()
    found: dict[tuple[str, str], Plugin] = {}
    for folder in _metadata_folders():
        for plugin in _plugins_of(folder):
            found.setdefault((plugin.group, plugin.name), plugin)
    return tuple(found.values())


def _metadata_folders() -> Iterator[Path]:
    here = Path.cwd()
    for place in dict.fromkeys(sys.path):
        if not place or Path(place) == here:  # what lies where somebody stands is not installed
            continue
        try:
            with os.scandir(place) as entries:
                names = sorted(e.path for e in entries if e.name.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue
        yield from map(Path, names)


def _plugins_of(folder: Path) -> Iterator[Plugin]:
    try:
        with (folder / "entry_points.txt").open("rb") as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return
    if b"[stratadvisor." not in data:
        return
    group = ""
    for raw in data.decode("utf-8", "replace").splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif group in GROUPS and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield Plugin(group=group, name=name.strip(), value=value.split("[")[0].strip(), distribution=folder.stem)


def of_group(group: str) -> tuple[Plugin, ...]:
    """Return the plug-ins of a group."""
    return tuple(p for p in installed() if p.group == group)


def load(group: str, kind: type[Kind], taken: tuple[str, ...] = ()) -> dict[str, Kind]:
    """Return name -> object of every plug-in of a group that loads and is a ``kind``; the others become problems."""
    found: dict[str, Kind] = {}
    for plugin in of_group(group):
        module, _, attribute = plugin.value.partition(":")
        try:
            value = importlib.import_module(module)
            for part in attribute.split("."):
                value = getattr(value, part)
        except BaseException as problem:  # whatever a stranger's module does must not take the tool down
            if isinstance(problem, KeyboardInterrupt):
                raise
            leave_out(plugin, f"{type(problem).__name__}: {problem}")
            continue
        if not isinstance(value, kind):
            leave_out(plugin, f"{plugin.value} is a {type(value).__name__}, not a {kind.__name__}")
        elif plugin.name in taken:
            leave_out(plugin, "stratadvisor has one of that name itself")
        else:
            found[plugin.name] = value
    return found


def folders() -> dict[Path, Plugin]:
    """Return the package folders of rules and targets that plug-ins bring; nothing is imported."""
    found: dict[Path, Plugin] = {}
    for group, below in FOLDERS.items():
        for plugin in of_group(group):
            folder = _package_folder(plugin)
            if folder is None:
                leave_out(plugin, f"there is no package {plugin.value!r}")
            elif not (folder / below).is_dir():
                leave_out(plugin, f"the package {plugin.value!r} has no folder {below}/")
            else:
                found.setdefault(folder, plugin)
    return found


def _package_folder(plugin: Plugin) -> Path | None:
    if not plugin.value.isidentifier():  # finding a package inside another would import the outer one
        return None
    spec = importlib.util.find_spec(plugin.value)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def leave_out(plugin: Plugin, reason: str) -> None:
    """Remember why a plug-in is not used."""
    _problems[plugin] = " ".join(reason.split())[:300]


def problems(group: str | None = None) -> dict[Plugin, str]:
    """Return the plug-ins that were left out so far, with the reason."""
    return {plugin: reason for plugin, reason in _problems.items() if group in (None, plugin.group)}


def warnings(*groups: str) -> tuple[str, ...]:
    """Return one sentence for each plug-in of some groups that was left out."""
    return tuple(f"{p.title} is left out: {reason}" for p, reason in _problems.items() if p.group in groups)
