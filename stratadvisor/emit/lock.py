"""The lock of a bundle: digests of what was written, to notice what was changed since."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from stratadvisor import __version__
from stratadvisor.emit.manifest import check_relative
from stratadvisor.errors import EmitError, StratadvisorError
from stratadvisor.schema.emission import LOCK_NAME, EmittedFile, Lock
from stratadvisor.store import dump, parse_json, read_text, validate

_CHUNK_BYTES = 1024 * 1024


def digest_text(text: str) -> str:
    """Return the SHA-256 of a file's text as it lies on disk."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_file(path: Path) -> str | None:
    """Return the SHA-256 of a file; None when there is no such file.

    Raises:
        EmitError: it exists and cannot be read, or is no file (a pipe would wait for ever).

    """
    digest = hashlib.sha256()
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise EmitError(f"{path} is not a regular file")
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        raise EmitError(f"{path} cannot be read: {problem.strerror}") from None


def lock_file(files: Iterable[EmittedFile], entrypoint: str) -> EmittedFile:
    """Return the lock of ``files`` as a file of the bundle."""
    digests = {file.path: digest_text(file.content) for file in sorted(files, key=lambda f: f.path)}
    lock = Lock(stratadvisor_version=__version__, entrypoint=entrypoint, digests=digests)
    return EmittedFile(path=LOCK_NAME, content=dump(lock), format="json")


def read_lock(directory: Path, error: type[StratadvisorError] = EmitError) -> Lock | None:
    """Return the lock in ``directory``; None when there is none.

    Raises:
        StratadvisorError: of class ``error``, when there is one that cannot be read.

    """
    path = directory / LOCK_NAME
    if not path.is_file():
        return None
    lock = validate(Lock, parse_json(read_text(path, error), path, error), path, error)
    for name in (lock.entrypoint, *lock.digests):
        try:
            check_relative(name)
        except ValueError as problem:
            raise error(f"{path}: {problem}") from None
    return lock


def drifted_files(directory: Path, lock: Lock) -> tuple[str, ...]:
    """Return the files of the lock that are missing or differ from what was written, sorted."""
    return tuple(path for path, digest in sorted(lock.digests.items()) if digest_file(directory / path) != digest)
