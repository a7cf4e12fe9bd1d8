"""A folder of token files as one dataset: every shard is mapped, none is read as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import ConcatDataset

from .config import ConfigError

SUFFIXES = (".bin", ".npy")


class Shards(ConcatDataset[Any]):
    """The windows of one file after the other; none crosses from a file into the next."""

    fixed_tokens = True


def shard_paths(folder: Path) -> list[Path]:
    """Return the token files of a folder in the order of their names, which is the order of samples.

    Raises:
        ConfigError: the folder cannot be read, or holds none.

    """
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    except OSError as problem:
        raise ConfigError(f"{folder} cannot be read: {problem.strerror}") from None
    if not found:
        raise ConfigError(f"{folder} has no token files: shards end in {' or '.join(SUFFIXES)}")
    return found
