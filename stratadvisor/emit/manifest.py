"""Targets: a folder of templates with an ``emitter.toml`` that says what it makes and for which strategies."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field, field_validator, model_validator

from stratadvisor.emit.traits import TRAITS
from stratadvisor.errors import EmitError
from stratadvisor.resources import bundled
from stratadvisor.schema.base import Document
from stratadvisor.schema.emission import CLUSTER_NAME, LOCK_NAME, PLAN_NAME, FileFormat
from stratadvisor.store import validate

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable

    import tomllib
else:
    from importlib.abc import Traversable

    import tomli as tomllib

MANIFEST_NAME = "emitter.toml"
RUNTIME_FOLDER = "stratadvisor_runtime"
"""Folder of a bundle that holds the copies of stratadvisor.runtime."""
TARGETS_FOLDER = "targets"
"""Folder of a bundle that holds one folder for each target beside the bundle's own."""
_TARGET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_RESERVED = (PLAN_NAME, CLUSTER_NAME, LOCK_NAME)


MAX_MEMBER_BYTES = 1024 * 1024
"""Of one file of an overlay; the longest template shipped has a hundredth of it."""


def read_member(root: Traversable, file: Traversable) -> str:
    """Return the text of a file of a template folder.

    Raises:
        EmitError: it is too large, or a symbolic link leads out of the folder: what lies elsewhere on this machine
            must not end in a bundle that is handed on.
        UnicodeDecodeError: it is not UTF-8.

    """
    if isinstance(root, Path) and isinstance(file, Path):
        if not file.resolve().is_relative_to(root.resolve()):
            raise EmitError(f"{file} is a symbolic link that leads out of {root}", hint="copy the file into the folder")
        if file.stat().st_size > MAX_MEMBER_BYTES:
            raise EmitError(f"{file} is larger than {MAX_MEMBER_BYTES // 1024} KiB")
    return file.read_text(encoding="utf-8")


def check_relative(path: str) -> str:
    """Return ``path`` when it names a file inside a folder; raise ValueError when it could lead out of it."""
    pure = PurePosixPath(path)
    if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path or str(pure) != path:
        raise ValueError(f"{path!r} is not a plain relative path")
    return path


class OutputSpec(Document):
    """One file that a target makes."""

    template: str
    """Path under templates/, with its folder: ``torchrun/launch.sh.j2``."""
    path: str
    """Where it lies in the bundle."""
    format: FileFormat
    executable: bool = False
    when: Literal["always", "several_nodes", "zero"] = "always"
    """zero: only for plans that DeepSpeed's ZeRO carries out."""

    @field_validator("template", "path")
    @classmethod
    def _relative(cls, value: str) -> str:
        return check_relative(value)


class EmitterManifest(Document):
    """What ``emitter.toml`` holds."""

    summary: str = Field(min_length=1)
    since: str
    """Version of stratadvisor that brought the target."""
    role: Literal["bundle", "beside"] = "bundle"
    """bundle: it makes the bundle itself. beside: its files lie in ``targets/NAME/`` and use those of the bundle."""
    strategies: tuple[str, ...] = Field(min_length=1)
    """Names of strategies whose plans it can express."""
    without: dict[str, str] = Field(default_factory=dict)
    """Strategy that it does not know -> why."""
    refuses: dict[str, str] = Field(default_factory=dict)
    """Trait of a plan (see ``traits``) -> why it cannot be expressed here."""
    nearest: tuple[str, ...] = ()
    """Targets to name first when this one cannot express a plan."""
    entrypoint: str
    """Output that starts the run."""
    requires: dict[str, str] = Field(default_factory=dict)
    """Distribution -> version range that the nodes need."""
    outputs: tuple[OutputSpec, ...] = Field(min_length=1, alias="output")

    @model_validator(mode="after")
    def _consistent(self) -> EmitterManifest:
        paths = [output.path for output in self.outputs]
        for path in paths:
            if paths.count(path) > 1:
                raise ValueError(f"two outputs are written to {path!r}")
            if path in _RESERVED or PurePosixPath(path).parts[0] in (RUNTIME_FOLDER, TARGETS_FOLDER):
                raise ValueError(f"an output may not be written to {path!r}: every bundle has that file already")
        for trait in self.refuses:
            if trait not in TRAITS:
                raise ValueError(f"refuses.{trait} is no trait of a plan; there are {', '.join(TRAITS)}")
        starts = [output for output in self.outputs if output.path == self.entrypoint]
        if not starts:
            raise ValueError(f"the entrypoint {self.entrypoint!r} is none of the outputs {', '.join(paths)}")
        if not starts[0].executable or starts[0].when != "always":
            raise ValueError(f"the entrypoint {self.entrypoint!r} must be an executable output that is always made")
        return self


def template_roots(overlays: tuple[Path, ...]) -> list[Traversable]:
    """Return the folders of templates, the strongest first: the last overlay wins, the shipped folder comes last.

    Raises:
        EmitError: an overlay is no directory.

    """
    roots: list[Traversable] = []
    for overlay in reversed(overlays):
        if not overlay.is_dir():
            raise EmitError(f"the overlay {overlay} is not a directory")
        if (overlay / "templates").is_dir():
            roots.append(overlay / "templates")
    return [*roots, bundled("templates")]


def available_targets(overlays: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Return the names of all targets, shipped and of the overlays, sorted."""
    names = {
        entry.name
        for root in template_roots(overlays)
        for entry in root.iterdir()
        if _TARGET_NAME.fullmatch(entry.name) and (entry / MANIFEST_NAME).is_file()
    }
    return tuple(sorted(names))


def load_manifest(target: str, overlays: tuple[Path, ...] = ()) -> EmitterManifest:
    """Return the manifest of ``target`` from the strongest root that has it.

    Raises:
        EmitError: no such target (with the names there are), or a manifest that cannot be read.

    """
    for root in template_roots(overlays):
        file = root / target / MANIFEST_NAME if _TARGET_NAME.fullmatch(target) else None
        if file is None or not file.is_file():
            continue
        place = Path(str(file))
        try:
            data = tomllib.loads(read_member(root, file))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, RecursionError) as problem:
            raise EmitError(f"{place} is not usable TOML: {problem}") from None
        return validate(EmitterManifest, data, place, EmitError)
    raise EmitError(
        f"there is no target {target[:60]!r}",
        hint=f"targets: {', '.join(available_targets(overlays))}",
    )
