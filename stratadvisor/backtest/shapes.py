"""The model of a measured run, from the dimensions in its row."""

from __future__ import annotations

import re

from stratadvisor.backtest.rows import Row
from stratadvisor.catalog import models as catalog_models
from stratadvisor.schema.workload import Family, ModelShape

USUAL_HEAD = 128
"""Width of a head where the number of heads is not stated: it hardly matters to the time of large models."""
MIXTURE = "(MoE)"
_ROUNDED = 0.02
"""Sizes are printed with two digits and more."""
_GATED_NAMES = ("llama", "qwen", "mistral", "yi-", "internlm", "gemma")
_ENCODERS = ("bert", "roberta")
_TIED_NAMES = ("gpt", "mpt", "opt", "bert", "llama-3.2-3b", "llama-3.2-1b")


def shape_of(row: Row) -> ModelShape | str:
    """Return the shape, or why the row does not give one."""
    shape, outputs = _body(row), row.count("outputs")
    if outputs and isinstance(shape, ModelShape):
        return shape.model_copy(update={"task_outputs": outputs})
    return shape


def _body(row: Row) -> ModelShape | str:
    name = row.text("model_name") or "model"
    if MIXTURE in name:
        return _mixture(row, name)
    hidden = row.count("hidden")
    if hidden is None:
        return "the hidden size is not stated"
    layers = row.count("n_layers") or _layers(row, hidden)
    if layers is None:
        return "neither layers nor parameters are stated"
    heads = row.count("n_heads") or max(1, hidden // USUAL_HEAD)
    lowered = name.lower()
    known = catalog_models.lookup(lowered)
    if known is not None and _agrees(known, row):
        return known
    encoder = any(word in lowered for word in _ENCODERS)
    vocab = row.count("vocab") or 50257
    keys = row.count("n_kv_heads") or heads
    head_dim = -(-hidden // heads)
    tied = any(lowered.startswith(word) for word in _TIED_NAMES)
    stated = row.number("n_params")
    width = row.count("ffn_hidden") or 4 * hidden
    gated = any(word in lowered for word in _GATED_NAMES)
    family: Family = "encoder" if encoder else "decoder"
    counted = _count(layers, hidden, heads * head_dim, keys * head_dim, width, vocab, gated=gated, tied=tied)
    total = stated if stated is not None and 0.8 < stated / counted < 1.25 else counted
    inside = _count(layers, hidden, heads * head_dim, keys * head_dim, width, 0, gated=gated, tied=tied)
    if stated is not None and abs(stated / inside - 1) < _ROUNDED < abs(stated / counted - 1):
        total = counted  # the stated size leaves out the embeddings
    return ModelShape(
        name=name,
        source=row.text("source") or row.name,
        family=family,
        num_parameters=int(total),
        num_active_parameters=int(total),
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=head_dim,
        ffn_hidden_size=width,
        gated_mlp=gated,
        vocab_size=vocab,
        tied_embeddings=tied,
        attention_bias="internlm" in lowered,
        norm_bias=not gated,  # LayerNorm, and positions that are learned or ALiBi: the GPT family and MPT
        learned_positions=not gated,
    )


def _mixture(row: Row, name: str) -> ModelShape | str:
    """Return the catalog's shape of a mixture of experts, whose experts no column describes."""
    known = catalog_models.lookup("-".join(re.split(r"[\s_]+", name.replace(MIXTURE, "").strip().lower())))
    if known is None or not _agrees(known, row):
        return "the experts of a mixture are not described by these columns, and the catalog does not know this one"
    return known


def _layers(row: Row, hidden: int) -> int | None:
    """Return the layers that the stated parameters leave, 12 h^2 each; None when they are not stated."""
    stated = row.number("n_params")
    if stated is None:
        return None
    return max(1, round((stated - (row.count("vocab") or 50257) * hidden) / (12 * hidden**2)))


def _agrees(known: ModelShape, row: Row) -> bool:
    """Whether every dimension that the row states is the catalog's."""
    stated = (
        ("n_layers", known.num_layers),
        ("hidden", known.hidden_size),
        ("n_heads", known.num_attention_heads),
        ("n_kv_heads", known.num_key_value_heads),
        ("ffn_hidden", known.ffn_hidden_size),
        ("vocab", known.vocab_size),
    )
    return known.is_transformer and all(row.count(column) in (None, value) for column, value in stated)


def _count(
    layers: int, hidden: int, queries: int, keys: int, width: int, vocab: int, *, gated: bool, tied: bool
) -> float:
    attention = hidden * (2 * queries + 2 * keys)
    mlp = hidden * width * (3 if gated else 2)
    return float(layers * (attention + mlp + 2 * hidden) + vocab * hidden * (1 if tied else 2))
