"""A plausible decoder for a number of parameters, when that is all the user says."""

from __future__ import annotations

import math

from stratadvisor.catalog.counting import Blueprint, count
from stratadvisor.errors import ModelError
from stratadvisor.schema.workload import ModelShape
from stratadvisor.units import format_count

SMALLEST, LARGEST = 1e6, 2e13
_TEMPLATES = (
    # layers, hidden, heads, key-value heads, ffn, vocabulary: LLaMA-like proportions (arXiv:2302.13971 table 2,
    # arXiv:2307.09288, arXiv:2407.21783 table 3), the small ones after SmolLM and Pythia.
    (4, 128, 2, 2, 384, 8192),
    (6, 192, 3, 3, 512, 16384),
    (6, 320, 5, 5, 896, 16384),
    (8, 512, 8, 8, 1408, 16384),
    (12, 768, 12, 12, 2048, 32000),
    (24, 1024, 16, 16, 2816, 32000),
    (24, 1536, 12, 12, 4096, 32000),
    (24, 2048, 16, 16, 5504, 32000),
    (32, 2560, 20, 20, 6912, 32000),
    (32, 4096, 32, 32, 11008, 32000),
    (40, 5120, 40, 40, 13824, 32000),
    (60, 6656, 52, 52, 17920, 32000),
    (80, 8192, 64, 8, 28672, 32000),
    (96, 12288, 96, 8, 33792, 128256),
    (126, 16384, 128, 8, 53248, 128256),
    (128, 24576, 192, 16, 67584, 128256),
    (160, 32768, 256, 16, 90112, 128256),
    (192, 49152, 384, 16, 135168, 128256),
)
_STEP = 64


def _blueprint(template: tuple[int, int, int, int, int, int], layers: int, ffn: int) -> Blueprint:
    _, hidden, heads, key_values, _, vocab = template
    return Blueprint(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_key_value_heads=key_values,
        head_dim=hidden // heads,
        ffn_size=ffn,
        vocab_size=vocab,
        norm_parameters=hidden,
    )


def _fitted(template: tuple[int, int, int, int, int, int], wanted: float) -> Blueprint | None:
    """Return the template with the number of layers, then the MLP width, that comes closest to ``wanted``."""
    layers, hidden, _, _, ffn, _ = template
    fixed = count(_blueprint(template, 0, ffn))[0]
    each = count(_blueprint(template, 1, ffn))[0] - fixed
    number = round((wanted - fixed) / each)
    if number < max(2, layers // 2):
        return None
    if number != layers and abs(fixed + layers * each - wanted) <= 0.04 * wanted:
        number = layers
    plan = _blueprint(template, number, ffn)
    if abs(count(plan)[0] - wanted) <= 0.04 * wanted:
        return plan
    width = ffn + (wanted - count(plan)[0]) / (number * 3 * hidden)
    return _blueprint(template, number, max(_STEP, round(width / _STEP) * _STEP))


def _meant(num_parameters: float) -> str:
    """Return the question whether billions were meant: nobody trains seven parameters."""
    return f"{num_parameters:g}B? " if 0 < num_parameters <= 1000 else ""


def shape_for_size(num_parameters: float) -> ModelShape:
    """Return a LLaMA-like shape of about that size, 1M to 20T; 7B gives the 32 layers of 4096 of LLaMA-7B.

    Raises:
        ModelError: the size is outside what the proportions hold for.

    """
    if not SMALLEST <= num_parameters <= LARGEST:
        size = format_count(num_parameters) if math.isfinite(num_parameters) else str(num_parameters)
        raise ModelError(
            f"no transformer shape is known for {size} parameters",
            hint=f"{_meant(num_parameters)}sizes from 1M to 20T can be planned; give --model with a name or a"
            " config.json otherwise",
        )
    fits = [(t, plan) for t in _TEMPLATES if (plan := _fitted(t, num_parameters)) is not None]
    template, plan = min(fits, key=lambda pair: abs(pair[1].num_layers / pair[0][0] - 1)) if fits else (None, None)
    if template is None or plan is None:
        vocab = _STEP * max(1, round((num_parameters - 110_000) / 128 / _STEP))
        plan = _blueprint((2, 64, 1, 1, 192, vocab), 2, 192)
    total, active = count(plan)
    return ModelShape(
        name=f"chosen for {format_count(num_parameters)}",
        source="proportions of LLaMA (arXiv:2302.13971) for the given size",
        num_parameters=total,
        num_active_parameters=active,
        num_layers=plan.num_layers,
        hidden_size=plan.hidden_size,
        num_attention_heads=plan.num_heads,
        num_key_value_heads=plan.num_key_value_heads,
        head_dim=plan.head_dim,
        ffn_hidden_size=plan.ffn_size,
        vocab_size=plan.vocab_size,
        max_sequence_length=0,
    )
