"""Models and data with which training by any strategy can be compared to training in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from stratadvisor.runtime import data, model
from stratadvisor.runtime.config import TrainConfig

VOCABULARY, LENGTH, SAMPLES = 23, 12, 37


class Ragged(Dataset[Any]):
    """Sequences of 2 to 12 tokens, padded; what is padding, and every seventh token, does not count in the loss.

    37 of them: no batch size divides that, so batches straddle the ends of epochs.
    """

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        length = int(torch.randint(2, LENGTH + 1, (), generator=random))
        tokens = (torch.arange(LENGTH + 1) * (1 + index % 3) + index) % VOCABULARY
        labels = tokens[1:].clone()
        labels[length:] = data.IGNORED
        labels[labels % 7 == 6] = data.IGNORED
        return tokens[:-1], labels


class Small(nn.Module):
    """Token and neighbour embeddings through one hidden layer; called as (inputs, labels), returns the summed loss."""

    def __init__(self, dropout: float = 0.0, buffer: bool = False) -> None:
        super().__init__()
        torch.manual_seed(11)
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Dropout(dropout))])
        self.norm = nn.BatchNorm1d(32, momentum=0.1) if buffer else nn.Identity()
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        here = self.embedding(inputs)
        x = torch.cat([here, here.roll(1, dims=1)], dim=-1)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x.flatten(0, 1)).view_as(x)
        scores = self.head(x).flatten(0, 1)
        return F.cross_entropy(scores, labels.flatten(), ignore_index=data.IGNORED, reduction="sum")


def ragged(_: TrainConfig, __: Path | None) -> Dataset[Any]:
    return Ragged()


PROGRAMS: dict[str, tuple[Any, Any]] = {
    "default": (model.build, data.token_dataset),
    "ragged": (lambda _: Small(), ragged),
    "dropout": (lambda _: Small(dropout=0.3), ragged),
    "batch_norm": (lambda _: Small(buffer=True), ragged),
}
