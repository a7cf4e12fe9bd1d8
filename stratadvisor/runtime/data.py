"""Training data: synthetic tokens that can be learned, a text file as bytes, or memory-mapped files of tokens."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from .config import ConfigError, TrainConfig
from .foreign import example_items
from .sampler import ShareSampler
from .shards import Shards, shard_paths

IGNORED = -100
"""Label of a position that does not count in the loss (the default of cross_entropy)."""
MASKED_SHARE = 0.15
"""Positions that a masked language model has to fill in (arXiv:1810.04805, section 3.1)."""
Sample = tuple[torch.Tensor, torch.Tensor]


class SyntheticTokens(Dataset[Sample]):
    """A fixed cycle over a small alphabet, one token in ten replaced at random: the loss falls from ln(alphabet)."""

    fixed_tokens = True
    """Every label counts in the loss; a dataset without this attribute has its tokens counted in every step."""

    def __init__(self, vocab_size: int, sequence_length: int, seed: int, num_samples: int = 1 << 20) -> None:
        self.alphabet = min(vocab_size, 256)
        self._length = sequence_length
        self._seed = seed
        self._num_samples = num_samples
        self._cycle = torch.randperm(self.alphabet, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Sample:
        """Return (inputs, labels); the same index always gives the same sample."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        start = int(torch.randint(self.alphabet, (), generator=random))
        tokens = self._cycle[(start + torch.arange(self._length + 1)) % self.alphabet]
        noise = torch.rand(self._length + 1, generator=random) < 0.1
        replaced = torch.randint(self.alphabet, (self._length + 1,), generator=random)
        tokens = torch.where(noise, replaced, tokens)
        return tokens[:-1], tokens[1:]


class TokenWindows(Dataset[Sample]):
    """Windows of ``sequence_length`` tokens, one beside the other, over one long sequence of tokens."""

    fixed_tokens = True

    def __init__(self, tokens: Any, sequence_length: int, table: torch.Tensor | None = None) -> None:
        self._tokens = tokens
        self._length = sequence_length
        self._table = table
        """Byte value -> token, for text."""

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: int) -> Sample:
        """Return (inputs, labels): the labels are the inputs one place further."""
        start = index * self._length
        window = self._tokens[start : start + self._length + 1].to(torch.int64)
        if self._table is not None:
            window = self._table[window]
        return window[:-1], window[1:]


class MaskedTokens(Dataset[Sample]):
    """Inputs with 15 % of the positions masked, which are the ones that count in the loss (family ``encoder``)."""

    def __init__(self, dataset: Any, vocab_size: int, seed: int) -> None:
        self._dataset, self._mask_token, self._seed = dataset, vocab_size - 1, seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Sample:
        """Return (inputs, labels); which positions are masked depends on the index alone."""
        inputs, _ = self._dataset[index]
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        masked = torch.rand(len(inputs), generator=random) < MASKED_SHARE
        masked[int(torch.randint(len(inputs), (), generator=random))] = True  # never a sample without a label
        return torch.where(masked, self._mask_token, inputs), torch.where(masked, inputs, IGNORED)


def byte_table(counts: Counter[int], vocab_size: int) -> torch.Tensor | None:
    """Return byte -> token: None (the byte itself) when 256 fit, else by frequency with one token for all the rest."""
    if vocab_size >= 256:
        return None
    table = torch.full((256,), vocab_size - 1, dtype=torch.int64)
    for token, (byte, _) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
        table[byte] = min(token, vocab_size - 1)
    return table


def _mapped(path: Path, dtype: torch.dtype, offset: int = 0) -> torch.Tensor:
    """Return a file as a tensor without reading it: pages come in as they are used, shared by all processes."""
    size = path.stat().st_size - offset
    if size < dtype.itemsize:
        raise ConfigError(f"{path} is empty")
    whole = torch.from_file(str(path), shared=False, size=size + offset, dtype=torch.uint8)
    usable = size - size % dtype.itemsize
    return whole[offset : offset + usable].view(dtype)


def _numpy_header(path: Path) -> tuple[torch.dtype, int]:
    """Return dtype and offset of the data of a one-dimensional ``.npy`` file (NEP 1: magic, version, header length)."""
    import ast

    with path.open("rb") as stream:
        start = stream.read(12)
        if start[:6] != b"\x93NUMPY":
            raise ConfigError(f"{path} is not a NumPy file")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(start[8 : 8 + width], "little")
        stream.seek(8 + width)
        try:
            header = ast.literal_eval(stream.read(length).decode("latin1"))
            kind, shape = header["descr"], header["shape"]
        except (SyntaxError, ValueError, KeyError, TypeError):
            raise ConfigError(f"{path} has an unreadable NumPy header") from None
    kinds = {"<u2": torch.uint16, "<i4": torch.int32, "<u4": torch.uint32, "<i8": torch.int64, "|u1": torch.uint8}
    if kind not in kinds or len(shape) != 1:
        raise ConfigError(f"{path} must hold one dimension of whole numbers, not {kind} of shape {tuple(shape)}")
    return kinds[kind], 8 + width + length


def _largest(tokens: torch.Tensor) -> int:
    """Return the largest token, read piece by piece."""
    return max(int(tokens[i : i + (1 << 22)].to(torch.int64).max()) for i in range(0, len(tokens), 1 << 22))


def open_tokens(path: Path, sequence_length: int, vocab_size: int) -> TokenWindows:
    """Return the windows of a ``.bin`` (uint16 tokens), ``.npy`` (tokens) or any other file (text, one byte a token).

    Raises:
        ConfigError: the file is missing, shorter than two sequences, or has tokens outside the vocabulary.

    """
    table = None
    try:
        if path.suffix == ".bin":
            tokens = _mapped(path, torch.uint16)
        elif path.suffix == ".npy":
            tokens = _mapped(path, *_numpy_header(path))
        else:
            tokens = _mapped(path, torch.uint8)
            if vocab_size < 256:
                table = byte_table(Counter(path.read_bytes()), vocab_size)
    except (OSError, RuntimeError) as problem:
        raise ConfigError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}") from None
    if table is None and vocab_size < 65536 and (largest := _largest(tokens)) >= vocab_size:
        raise ConfigError(f"{path} has the token {largest}, but the model's vocabulary has {vocab_size}")
    windows = TokenWindows(tokens, sequence_length, table)
    if len(windows) < 1:
        raise ConfigError(f"{path} has {len(tokens)} tokens, fewer than one sequence of {sequence_length} and its next")
    return windows


def token_dataset(config: TrainConfig, path: Path | None) -> Dataset[Sample]:
    """Return the dataset of a transformer: the tokens of a file or a folder of shards, or synthetic ones.

    For a module of the user's factory, random items of its input's shape.
    """
    vocab_size = config.model.vocab_size
    if config.model.family == "module":
        if path is not None:
            raise ConfigError(
                f"the model {config.model.name!r} is not a transformer: replace build_data in train.py to read {path}"
            )
        return example_items(config.model.factory, config.seed)
    dataset: Dataset[Sample]
    if path is None:
        dataset = SyntheticTokens(vocab_size, config.sequence_length, config.seed)
    elif path.is_dir():
        dataset = Shards(open_tokens(shard, config.sequence_length, vocab_size) for shard in shard_paths(path))
    else:
        dataset = open_tokens(path, config.sequence_length, vocab_size)
    return MaskedTokens(dataset, vocab_size, config.seed) if config.model.family == "encoder" else dataset


def _start_worker(_: int) -> None:
    """Leave Ctrl-C to the training process and let SIGTERM end the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def batches(
    dataset: Dataset[Any],
    config: TrainConfig,
    shares: list[int],
    rank: int,
    *,
    num_micro_batches: int,
    start_sample: int,
) -> Iterator[Any]:
    """Return the endless iterator over the micro-batches of one rank."""
    num_samples = len(dataset)  # type: ignore[arg-type]
    sampler = ShareSampler(
        num_samples, shares, rank, num_micro_batches=num_micro_batches, seed=config.seed, start_sample=start_sample
    )
    workers = config.data_loader_workers
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        pin_memory=config.device_kind in ("cuda", "rocm") and bool(config.settings.get("pin_memory", True)),
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,  # another way would copy a mapped file to each worker
        worker_init_fn=_start_worker if workers else None,
    )
    return iter(loader)
