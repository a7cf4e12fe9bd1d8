"""Files of a checkpoint with the sum of their bytes beside them, so that a damaged one is noticed, not trained from."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import torch

SUM_SUFFIX = ".sum"
_CHUNK_BYTES = 1 << 22


class _Summing:
    """A stream that counts and sums what goes through it, and keeps the reason why a write failed.

    ``torch.save`` turns every failed write into the same RuntimeError about positions in its archive.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.num_bytes, self.crc32 = 0, 0
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        """Write and sum."""
        try:
            written = self._stream.write(data)
        except OSError as problem:
            self.problem = problem
            raise
        self.crc32 = zlib.crc32(data, self.crc32)
        self.num_bytes += written
        return written

    def flush(self) -> None:
        """Flush."""
        self._stream.flush()


def write_tensors(path: Path, state: dict[str, Any]) -> None:
    """Write a file of tensors and its sum; several nodes on one file system may write the same content at once.

    Raises:
        OSError: the disk is full, or the file cannot be written for another reason.

    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with temporary.open("wb") as stream:
        summing = _Summing(stream)
        try:
            torch.save(state, summing)  # type: ignore[arg-type]
        except RuntimeError:
            if summing.problem is None:
                raise
            raise summing.problem from None
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    _write_sum(path, summing.num_bytes, summing.crc32)


def note_sum(path: Path) -> None:
    """Write the sum of a file that another library wrote."""
    _write_sum(path, path.stat().st_size, file_crc32(path))


def _write_sum(path: Path, num_bytes: int, crc32: int) -> None:
    temporary = path.with_name(f".{path.name}{SUM_SUFFIX}.{uuid.uuid4().hex}")
    temporary.write_text(json.dumps({"bytes": num_bytes, "crc32": crc32}) + "\n", encoding="utf-8")
    temporary.replace(path.with_name(path.name + SUM_SUFFIX))


def file_crc32(path: Path) -> int:
    """Return the CRC-32 of a file's bytes."""
    crc32 = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32


def sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of every file below a folder, by its relative path."""
    return {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}


def damage(folder: Path, expected: dict[str, int], *, part: int = 0, parts: int = 1) -> str:
    """Return what is wrong with a checkpoint, or nothing.

    Sizes of all files are compared; the bytes are read of every ``parts``-th file from number ``part`` only, so that
    the processes of a node divide the reading.
    """
    for name, size in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes of {size}"
    summed = sorted(folder.rglob(f"*{SUM_SUFFIX}"))
    for note in summed[part::parts]:
        path = note.with_name(note.name.removesuffix(SUM_SUFFIX))
        try:
            wanted = json.loads(note.read_text(encoding="utf-8"))
            if path.stat().st_size != wanted["bytes"] or file_crc32(path) != wanted["crc32"]:
                return f"{path.relative_to(folder)} does not hold the bytes that were written"
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return f"{path.relative_to(folder)} cannot be checked: {problem}"
    return ""
