"""The dimensions of a model from its Hugging Face ``config.json``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from stratadvisor.catalog.counting import Blueprint, count
from stratadvisor.catalog.families import (
    FAMILIES,
    NESTED,
    TEXT_PARTS,
    TRAINED_IN_BF16,
    UNSUPPORTED,
    USUAL_NAMES,
    Family,
)
from stratadvisor.catalog.vision import vision_parameters
from stratadvisor.errors import ModelError
from stratadvisor.schema.workload import ModelShape

DEEPEST = 3
"""Text parts inside text parts."""
MAX_CONFIG_BYTES = 4 * 1024 * 1024
_LIMITS = {
    "hidden_size": 1_000_000,
    "num_layers": 10_000,
    "num_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "ffn_size": 10_000_000,
    "vocab_size": 100_000_000,
    "positions": 1_000_000_000,
}


def read_config(path: Path) -> ModelShape:
    """Return the shape described by a ``config.json`` (or a folder that holds one).

    Raises:
        ModelError: no such file, not JSON, a field missing, or a family that is not supported.

    """
    from stratadvisor.catalog.files import read_json_object

    file = path / "config.json" if path.is_dir() else path
    data = read_json_object(file, MAX_CONFIG_BYTES)
    named = data.get("_name_or_path")
    name = named if isinstance(named, str) and named.strip() and not named.startswith((".", "/")) else ""
    return shape_from_config(data, name or file.absolute().parent.name or file.stem, source=file.name)


def shape_from_config(config: Mapping[str, Any], name: str, *, source: str = "") -> ModelShape:
    """Return the shape of a configuration; the number of parameters is exact for the supported families.

    Args:
        config: the parsed ``config.json``; of a multimodal model only ``text_config`` is used.
        name: what to call the model.
        source: where the configuration comes from.

    Raises:
        ModelError: names the field that is missing or wrong, or the family that is not supported.

    """
    model_type, text, nested = _text_part(config, name)
    family = _family(model_type, name)
    for key, supported in family.refuse.items():
        if text.get(key, supported) != supported:
            raise ModelError(
                f"{name}: {key} = {text[key]!r} is not supported for {model_type} models",
                hint="give the size instead, for example --model-size 7B",
            )
    text = {**family.defaults, **{k: v for k, v in text.items() if v is not None or k not in family.defaults}}
    plan, positions = _blueprint(text, family, name)
    total, active = count(plan)
    shared = -(-plan.shared_size // plan.ffn_size) if plan.shared_size else 0
    return ModelShape(
        name=name,
        source=source + (" (text part only)" if nested else ""),
        family="encoder" if family.encoder else "decoder",
        num_parameters=total,
        num_active_parameters=active,
        num_layers=plan.num_layers,
        hidden_size=plan.hidden_size,
        num_attention_heads=plan.num_heads,
        num_key_value_heads=plan.num_key_value_heads,
        head_dim=plan.head_dim,
        ffn_hidden_size=plan.ffn_size,
        gated_mlp=plan.gated,
        vocab_size=plan.vocab_size,
        tied_embeddings=plan.tied,
        max_sequence_length=positions,
        num_experts=plan.num_experts,
        num_experts_per_token=plan.experts_per_token,
        num_shared_experts=shared,
        num_dense_layers=plan.num_dense_layers,
        dense_ffn_hidden_size=plan.dense_ffn_size if plan.num_dense_layers else 0,
        attention_bias=plan.query_key_value_bias,
        mlp_bias=plan.mlp_bias,
        learned_positions=family.learned_positions,
        norm_bias=family.norm_bias,
        fp16_overflows=family.fp16_overflows,
        num_vision_parameters=vision_parameters(config) if nested else 0,
    )


def _missing(name: str, where: str) -> NoReturn:
    raise ModelError(f"{name}: {where} has no model_type", hint=f'add "model_type" to {where}')


def _text_part(config: Mapping[str, Any], name: str, depth: int = 0) -> tuple[str, Mapping[str, Any], bool]:
    model_type = config.get("model_type")
    where = next((key for key in TEXT_PARTS if config.get(key) is not None), "")
    if where:
        nested = config[where]
        if not isinstance(nested, dict):
            raise ModelError(f"{name}: {where} is not an object", hint="give the model's original config.json")
        if any(nested.get(key) is not None for key in TEXT_PARTS):  # Qwen-Omni: thinker_config holds a text_config
            return _text_part(nested, name, depth + 1) if depth < DEEPEST else _missing(name, where)
        inner = nested.get("model_type") or NESTED.get(str(model_type))
        if not isinstance(inner, str):
            return _missing(name, where)
        return NESTED.get(inner, inner), nested, True
    if not isinstance(model_type, str):
        raise ModelError(
            f"{name}: the field model_type is missing",
            hint='a Hugging Face config.json has one, for example "model_type": "llama"',
        )
    return model_type, config, False


def _family(model_type: str, name: str) -> Family:
    family = FAMILIES.get(model_type)
    if family is not None:
        return family
    shown = model_type[:40]
    if model_type in UNSUPPORTED:
        hint = "give the size (--model-size) or the module itself (--model pkg.module:factory)"
        if model_type in TRAINED_IN_BF16:
            hint += "; with --precision bf16, or fp32 before compute capability 8.0: in fp16 these models overflow"
        raise ModelError(
            f"{name}: models of type {shown!r} have {UNSUPPORTED[model_type]}, which the formulas here do not cover",
            hint=hint,
        )
    near = difflib.get_close_matches(model_type, FAMILIES, n=1)
    raise ModelError(
        f"{name}: the model type {shown!r} is not known" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint="give the size (--model-size) or the module itself (--model pkg.module:factory)",
    )


def _whole(value: object, key: str, limit: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= limit:
        raise ModelError(
            f"{name}: {key} must be a whole number between 1 and {limit}, not {str(value)[:40]!r}",
            hint="compare with the model's original config.json",
        )
    return value


def _dimensions(config: Mapping[str, Any], family: Family, name: str) -> dict[str, int]:
    names = {**USUAL_NAMES, **family.names}
    dims: dict[str, int] = {}
    for ours, key in names.items():
        value = config.get(key)
        if value is None and key == "n_embd":
            value = config.get("n_embed")
        if value is None and key not in config and ours in ("hidden_size", "num_layers", "num_heads"):
            value = config.get(USUAL_NAMES[ours])
        if value is not None:
            dims[ours] = _whole(value, key, _LIMITS[ours], name)
    if "hidden_size" not in dims and config.get("n_embed") is not None:
        dims["hidden_size"] = _whole(config["n_embed"], "n_embed", _LIMITS["hidden_size"], name)
    for ours in ("hidden_size", "num_layers", "num_heads", "vocab_size"):
        if ours not in dims or (dims[ours] == 0 and ours != "vocab_size"):
            raise ModelError(
                f"{name}: the field {names[ours]} is missing", hint="compare with the model's original config.json"
            )
    if "ffn_size" not in dims or dims["ffn_size"] == 0:
        if family.gated:
            raise ModelError(
                f"{name}: the field {names['ffn_size']} is missing",
                hint="compare with the model's original config.json",
            )
        dims["ffn_size"] = 4 * dims["hidden_size"]
    if not dims.get("head_dim"):
        if dims["hidden_size"] % dims["num_heads"]:
            raise ModelError(
                f"{name}: hidden size {dims['hidden_size']} is not a multiple of {dims['num_heads']} heads",
                hint='add "head_dim" if the heads have a size of their own',
            )
        dims["head_dim"] = dims["hidden_size"] // dims["num_heads"]
    if not dims.get("num_key_value_heads"):
        dims["num_key_value_heads"] = dims["num_heads"]
    dims.setdefault("positions", 0)
    return dims


def _blueprint(config: Mapping[str, Any], family: Family, name: str) -> tuple[Blueprint, int]:
    """Return the blueprint and the largest sequence length (0: not stated)."""

    def truth(value: bool | str) -> bool:
        return bool(config.get(value, False)) if isinstance(value, str) else value

    dims = _dimensions(config, family, name)
    changes: dict[str, Any] = {}
    if family.special is not None:
        try:
            changes = family.special(config, dims)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError) as problem:
            raise ModelError(
                f"{name}: a field has the wrong kind of value ({problem})",
                hint="compare with the model's original config.json",
            ) from None
    positions = _whole(changes.pop("positions", dims.pop("positions")), "positions", _LIMITS["positions"], name)
    for key, value in changes.items():
        if value is None:
            raise ModelError(f"{name}: the field for {key} is missing", hint="compare with the original config.json")
        if not isinstance(value, bool):
            _whole(value, key, 10**12, name)
    plan = Blueprint(
        hidden_size=dims["hidden_size"],
        num_layers=dims["num_layers"],
        num_heads=dims["num_heads"],
        num_key_value_heads=dims["num_key_value_heads"],
        head_dim=dims["head_dim"],
        ffn_size=dims["ffn_size"],
        vocab_size=dims["vocab_size"],
        gated=family.gated,
        tied=bool(config.get("tie_word_embeddings", family.tied)),
        query_key_value_bias=truth(family.query_key_value_bias),
        output_bias=truth(family.output_bias),
        mlp_bias=truth(family.mlp_bias),
        norm_parameters=dims["hidden_size"] * (2 if family.norm_bias else 1) if family.norm_weight else 0,
        norms_per_layer=family.norms_per_layer,
        final_norms=1 if family.final_norm else 0,
    )
    plan = replace(plan, **changes)
    if plan.num_heads % plan.num_key_value_heads:
        raise ModelError(
            f"{name}: {plan.num_heads} heads are not a multiple of {plan.num_key_value_heads} key-value heads",
            hint="compare with the model's original config.json",
        )
    if plan.experts_per_token > plan.num_experts:
        raise ModelError(
            f"{name}: {plan.experts_per_token} experts per token, but only {plan.num_experts} experts",
            hint="compare with the model's original config.json",
        )
    return plan, positions
