"""What a data loader delivers here: sequences of tokens cut from a memory-mapped file, through torch's DataLoader.

The file is written by us and lies in the page cache, so this is the cost of the loader itself (processor, copies
between processes); reading cold data is the storage sub-probe's number.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from stratadvisor.probe.found import FeedRates

SEQUENCE_LENGTH = 2048
BATCH_ITEMS = 16
_TOKENS_IN_FILE = 4 * 1024**2
_ITEMS = 1 << 20


class TokenItems(Dataset[torch.Tensor]):
    """Items of ``SEQUENCE_LENGTH`` + 1 tokens (input and shifted target), stored as 16 bit, given as 64 bit."""

    def __init__(self, file: Path, num_tokens: int) -> None:
        self._tokens = torch.from_file(str(file), shared=False, size=num_tokens, dtype=torch.int16)
        self._num_tokens = num_tokens

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        start = (index * 7919 * SEQUENCE_LENGTH) % (self._num_tokens - SEQUENCE_LENGTH - 1)
        return self._tokens[start : start + SEQUENCE_LENGTH + 1].to(torch.int64) & 0xFFFF


def _item_seconds(items: TokenItems, budget: float) -> tuple[float, float]:
    """Return (wall, processor) seconds of one item."""
    items[0]
    count, wall, cpu = 0, time.perf_counter(), time.thread_time()
    while count < 100 or time.perf_counter() - wall < budget:
        items[count]
        count += 1
    return (time.perf_counter() - wall) / count, (time.thread_time() - cpu) / count


def _items_per_second(items: TokenItems, workers: int, budget: float) -> float:
    """Return the rate once the workers run; their start is not counted."""
    # Workers are forked, the default where it is safe to assume Linux; a spawned one would import torch again.
    loader = DataLoader(
        items, batch_size=BATCH_ITEMS, num_workers=workers, multiprocessing_context="fork" if workers else None
    )
    batches = iter(loader)
    for _ in range(max(1, 2 * workers) + 1):
        next(batches)
    count, begin = 0, time.perf_counter()
    while count < 4 or time.perf_counter() - begin < budget:
        next(batches)
        count += 1
    return count * BATCH_ITEMS / (time.perf_counter() - begin)


def worker_counts(usable_cores: float) -> tuple[int, ...]:
    """Return the numbers of workers to try: 0, 1, 2, 4, 8 as far as there are cores, and always 0 and 1."""
    return tuple(workers for workers in (0, 1, 2, 4, 8) if workers <= max(1.0, usable_cores))


def measure(threads: int, usable_cores: float, budget_seconds: float = 2.5, quick: bool = False) -> FeedRates:
    """Measure with up to ``usable_cores`` workers."""
    torch.set_num_threads(max(1, threads))
    counts = worker_counts(1.0 if quick else usable_cores)
    share = budget_seconds / (len(counts) + 1)
    with tempfile.TemporaryDirectory(prefix="stratadvisor-feed-") as folder:
        file = Path(folder) / "tokens.bin"
        num_tokens = _TOKENS_IN_FILE // (16 if quick else 1)
        file.write_bytes(os.urandom(2 * num_tokens))
        items = TokenItems(file, num_tokens)
    # The file is gone already, its mapping lives on here and in forked workers: nothing is left if we are ended.
    wall, cpu = _item_seconds(items, share)
    rates = {workers: _items_per_second(items, workers, share) for workers in counts}
    return FeedRates(
        item_seconds=wall,
        item_cpu_seconds=min(cpu, wall),
        items_per_second_by_workers=rates,
        item_bytes=items[0].element_size() * items[0].numel(),
        description=f"{SEQUENCE_LENGTH} tokens from a memory-mapped file, batches of {BATCH_ITEMS}, torch DataLoader",
    )
