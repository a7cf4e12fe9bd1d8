"""Write a bundle: everything staged first, then moved into place file by file, and put back when that fails."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from stratadvisor.emit.lock import digest_file, digest_text, read_lock
from stratadvisor.emit.manifest import check_relative
from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import LOCK_NAME, EmittedFile, Lock

Verdict = Literal["create", "identical", "changed", "conflict", "removed", "kept"]
"""changed: ours, untouched since we wrote it. conflict: edited, or not ours; written over with ``force`` only.
removed: written for an earlier plan, untouched, not part of this one. kept: the same, but edited, so left alone."""


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """What writing does (or would do) to one file."""

    path: str
    verdict: Verdict


def _refuse_escape(directory: Path, path: str) -> None:
    """Refuse a file that a symbolic link would put outside ``directory``."""
    current = directory
    for part in PurePosixPath(path).parts:
        current /= part
        if not current.is_symlink():
            continue
        try:
            inside = current.resolve().is_relative_to(directory.resolve())
        except (OSError, RuntimeError):
            inside = False
        if not inside:
            raise EmitError(
                f"{current} is a symbolic link that leads out of {directory}",
                hint="remove the link, or write to another directory",
            )


def _judge(file: EmittedFile, target: Path, lock: Lock | None) -> Verdict:
    if target.is_dir():
        raise EmitError(f"{target} is a directory; a file of that name is to be written")
    found = digest_file(target)
    if found is None:
        return "create"
    if found == digest_text(file.content):
        return "identical" if not file.executable or os.access(target, os.X_OK) else "changed"
    if file.path == LOCK_NAME or (lock is not None and lock.digests.get(file.path) == found):
        return "changed"
    return "conflict"


def compare(files: Sequence[EmittedFile], directory: Path, *, force: bool = False) -> tuple[FileVerdict, ...]:
    """Return what writing ``files`` to ``directory`` would do; touches nothing.

    Raises:
        EmitError: a path leads outside, a directory is in the way, or (without ``force``) the lock is unreadable.

    """
    if directory.exists() and not directory.is_dir():
        raise EmitError(f"{directory} is a file; a bundle is a directory")
    try:
        lock = read_lock(directory)
    except EmitError as problem:
        if not force:
            raise EmitError(problem.message, hint="use --force to write the bundle anew over it") from None
        lock = None
    verdicts: dict[str, Verdict] = {}
    for file in files:
        try:
            check_relative(file.path)
        except ValueError as problem:
            raise EmitError(str(problem)) from None
        if file.path in verdicts:
            raise EmitError(f"two files are to be written to {file.path}")
        _refuse_escape(directory, file.path)
        verdicts[file.path] = _judge(file, directory / file.path, lock)
    for path, digest in lock.digests.items() if lock is not None else ():
        if path not in verdicts:
            _refuse_escape(directory, path)
            found = digest_file(directory / path)
            if found is not None:
                verdicts[path] = "removed" if found == digest else "kept"
    return tuple(FileVerdict(path, verdict) for path, verdict in verdicts.items())


def write_files(files: Sequence[EmittedFile], directory: Path, *, force: bool = False) -> tuple[FileVerdict, ...]:
    """Write ``files`` and return what was done to each.

    A new directory appears complete or not at all. In an existing one every file is replaced in one step, and when
    a step fails those done before it are put back; a process killed in between leaves whole files, old or new, which
    the lock then reports as drifted.

    Raises:
        EmitError: edited files would be lost (without ``force``), a path leads outside, or the disk refuses.

    """
    verdicts = compare(files, directory, force=force)
    conflicts = [v.path for v in verdicts if v.verdict == "conflict"]
    if conflicts and not force:
        shown = ", ".join(conflicts[:5]) + (f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else "")
        raise EmitError(
            f"{directory} holds files that were edited since, or written by somebody else: {shown}",
            hint="use --force to write over them, or choose another directory with --output",
        )
    by_path = {file.path: file for file in files}
    writes = [by_path[v.path] for v in verdicts if v.verdict in ("create", "changed", "conflict")]
    removals = [v.path for v in verdicts if v.verdict == "removed"]
    if not writes and not removals:
        return verdicts
    try:
        if directory.is_dir():
            _replace(writes, removals, directory)
        else:
            _create(writes, directory)
    except OSError as problem:
        place = problem.filename2 or problem.filename or directory
        raise EmitError(
            f"{directory} cannot be written ({place}: {problem.strerror or problem}); it is as it was before",
            hint="check the permissions and the free space there, or choose another directory with --output",
        ) from None
    return verdicts


@contextmanager
def _staging(parent: Path, prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _stage(file: EmittedFile, place: Path, umask: int) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(file.content)
        stream.flush()
        os.fsync(stream.fileno())
    place.chmod((0o777 if file.executable else 0o666) & ~umask)


def _current_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _create(files: list[EmittedFile], directory: Path) -> None:
    """Stage beside ``directory`` and give the whole folder its name in one step."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    umask = _current_umask()
    with _staging(directory.parent, f".{directory.name}.") as staging:
        whole = staging / "bundle"
        whole.mkdir()
        for file in files:
            _stage(file, whole / file.path, umask)
        whole.rename(directory)


@dataclass
class _Undo:
    """What was done so far, to be put back."""

    backups: Path
    replaced: list[tuple[Path, Path | None]] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def keep(self, target: Path) -> None:
        """Remember ``target`` as it is now."""
        backup: Path | None = None
        if os.path.lexists(target):
            backup = self.backups / str(len(self.replaced))
            try:
                os.link(target, backup, follow_symlinks=False)
            except OSError:  # a file system without hard links
                shutil.copy2(target, backup, follow_symlinks=False)
        self.replaced.append((target, backup))

    def make_folder(self, folder: Path) -> None:
        """Create ``folder`` and its parents, remembering which are new."""
        missing = [p for p in (folder, *folder.parents) if not p.exists()]
        for path in reversed(missing):
            path.mkdir()
            self.folders.append(path)

    def back(self) -> None:
        """Put everything back, the last step first."""
        for target, backup in reversed(self.replaced):
            if backup is None:
                target.unlink(missing_ok=True)
            else:
                backup.replace(target)
        for folder in reversed(self.folders):
            folder.rmdir()


def _replace(writes: list[EmittedFile], removals: list[str], directory: Path) -> None:
    """Stage inside ``directory`` (always the same file system), then replace each file in one step."""
    umask = _current_umask()
    with _staging(directory, ".stratadvisor-") as staging:
        for index, file in enumerate(writes):
            _stage(file, staging / "new" / str(index), umask)
        backups = staging / "old"
        backups.mkdir()
        undo = _Undo(backups)
        try:
            for index, file in enumerate(writes):
                target = directory / file.path
                undo.make_folder(target.parent)
                undo.keep(target)
                (staging / "new" / str(index)).replace(target)
            for path in removals:
                undo.keep(directory / path)
                (directory / path).unlink()
        except BaseException:
            undo.back()
            raise
        for path in removals:
            _remove_empty(directory, (directory / path).parent)


def _remove_empty(directory: Path, folder: Path) -> None:
    """Remove folders of the bundle that a removal left empty."""
    while folder != directory and folder.is_relative_to(directory):
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent
