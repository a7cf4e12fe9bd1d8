"""A module of the user's own factory: the loss around it, and random items of the right shape to time it with."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import Dataset

from .config import ConfigError

TOKENS, PIXELS = 128, 224
"""Size of an item where the factory gives no example, the same as the planner counts with."""


class ForeignModule(nn.Module):
    """The user's module with the loss summed over the batch.

    The module returns the mean loss (one number), or class scores for the labels (classes last). For anything else the
    mean square of the output stands in: good for timing, useless for learning.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss summed over the labels."""
        output = _first_tensor(self.module(inputs)).float()
        if output.ndim == 0:
            return output * labels.numel()
        if output.shape[:-1] == labels.shape and output.shape[-1] > 1:
            return F.cross_entropy(output.flatten(0, -2), labels.flatten(), reduction="sum")
        return output.square().mean() * labels.numel()


def _first_tensor(value: Any) -> torch.Tensor:
    """Return the first tensor of what a module returned (a tensor, a tuple, a dictionary)."""
    if isinstance(value, torch.Tensor):
        return value
    items = value.values() if hasattr(value, "values") else value if isinstance(value, (tuple, list)) else ()
    for item in items:
        if isinstance(item, torch.Tensor):
            return item
    raise ConfigError(f"the module returns a {type(value).__name__}: let it return its loss or class scores")


def make(target: str) -> tuple[nn.Module, Any]:
    """Return (module, example input or None) of the factory ``pkg.module:callable``.

    Raises:
        ConfigError: it cannot be imported, is not callable or returns something else.

    """
    module_name, _, attribute = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(f"model.factory {target!r} cannot be imported: {problem}") from None
    if not callable(factory):
        raise ConfigError(f"model.factory {target!r} is not callable")
    made = factory()
    module, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.factory {target!r} returned a {type(module).__name__}, not a torch module")
    return module, example


class RandomItems(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random inputs shaped like the example (its first dimension is the batch), and labels 0 or 1."""

    fixed_tokens = False

    def __init__(self, example: torch.Tensor, highest_token: int, seed: int, num_samples: int = 1 << 20) -> None:
        self._shape, self._whole = example.shape[1:], not example.is_floating_point()
        self._highest, self._seed, self._num_samples = highest_token, seed, num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (input, label); the same index always gives the same item."""
        random = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        label = torch.tensor(index % 2)
        if self._whole:
            return torch.randint(self._highest, self._shape, generator=random), label
        return torch.randn(self._shape, generator=random) + label, label


def example_items(target: str, seed: int) -> RandomItems:
    """Return random items for the factory's module.

    Raises:
        ConfigError: its input cannot be told, or is more than one tensor.

    """
    module, example = make(target)
    if isinstance(example, (tuple, list)) and len(example) == 1:
        example = example[0]
    tokens = next((layer.num_embeddings for layer in module.modules() if isinstance(layer, nn.Embedding)), 2)
    if example is None:
        example = usual_input(module)
    if not isinstance(example, torch.Tensor) or example.ndim < 1:
        raise ConfigError(
            f"the input of {target} is not one tensor: replace build_data in train.py by your own dataset"
        )
    return RandomItems(example, tokens, seed)


def usual_input(module: nn.Module) -> torch.Tensor | None:
    """Return an input of batch 1 that suits the first layer with weights, None when it cannot be told."""
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            return torch.zeros(1, TOKENS, dtype=torch.int64)
        if isinstance(layer, nn.Conv2d):
            return torch.zeros(1, layer.in_channels, PIXELS, PIXELS)
        if isinstance(layer, nn.Linear):
            return torch.zeros(1, layer.in_features)
    return None
