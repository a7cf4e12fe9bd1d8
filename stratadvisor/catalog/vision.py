"""Parameters of the vision tower of a multimodal configuration, beside its text part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LARGEST = 1_000_000
USUAL_RATIO, LARGEST_RATIO = 4, 64
_WIDTH = ("hidden_size", "embed_dim", "width")
_LAYERS = ("num_hidden_layers", "depth", "layers")
_PATCH = ("patch_size", "spatial_patch_size")


def vision_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters of ``vision_config``; 0 without one, or where it does not state width and depth.

    A vision transformer of width h and MLP width f holds 4 h^2 + 2 h f in the matrices of a layer, 9 h + f in its
    biases and norms, and a patch embedding (arXiv:2010.11929). Projections into the text model are not counted: a few
    percent of the tower.
    """
    tower = config.get("vision_config")
    if not isinstance(tower, dict):
        return 0
    width, layers = _first(tower, _WIDTH), _first(tower, _LAYERS)
    if not width or not layers:
        return 0
    ratio = tower.get("mlp_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= LARGEST_RATIO:
        ratio = USUAL_RATIO
    inner = _first(tower, ("intermediate_size",)) or int(ratio * width)
    patch = _first(tower, _PATCH) or 14
    channels = _first(tower, ("num_channels", "in_channels", "in_chans")) or 3
    embedding = channels * patch * patch * width
    return int(layers * (4 * width * width + 2 * width * inner + 9 * width + inner) + embedding)


def _first(tower: Mapping[str, Any], names: tuple[str, ...]) -> int:
    for name in names:
        value = tower.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST:
            return value
    return 0
