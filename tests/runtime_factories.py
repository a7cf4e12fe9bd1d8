"""Factories of small modules, as a user would name them."""

from __future__ import annotations

import torch
from torch import nn


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def with_example() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 1)), torch.zeros(1, 4, 5)


def two_inputs() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    return nn.Bilinear(2, 3, 4), (torch.zeros(1, 2), torch.zeros(1, 3))
