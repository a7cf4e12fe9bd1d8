"""What Hugging Face model families have in common and where they differ: names of fields, defaults, biases, norms.

Defaults are those of the configuration class of each family in the transformers documentation; only fields that
published configurations really leave out have one. Everything here is checked against the models transformers builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Mapping[str, Any]
Value = int | bool | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One ``model_type``. A string where a truth value may stand names the configuration field that decides."""

    encoder: bool = False
    gated: bool = True
    tied: bool = False
    """When the configuration says nothing about tie_word_embeddings."""
    query_key_value_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    norm_weight: bool = True
    norm_bias: bool = False
    norms_per_layer: int = 2
    final_norm: bool = True
    learned_positions: bool = False
    fp16_overflows: bool = False
    """Activations beyond 65504, the largest number of fp16 (huggingface/transformers issue 36822 has an example)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our name of a dimension -> its key where it is not the usual one."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Key -> documented default for keys that published configurations omit."""
    special: Callable[[Config, dict[str, int]], dict[str, Any]] | None = None
    """Changes to the blueprint, from the configuration and the dimensions read so far."""
    refuse: Mapping[str, object] = field(default_factory=dict)
    """Key -> the only value supported."""


USUAL_NAMES = {
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "positions": "max_position_embeddings",
}
GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "ffn_size": "n_inner",
    "positions": "n_positions",
}
UNSUPPORTED = {
    "deepseek_v2": "multi-head latent attention",
    "deepseek_v3": "multi-head latent attention",
    "kimi_k2": "multi-head latent attention",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "jamba": "state-space layers",
    "bamba": "state-space layers",
    "qwen3_next": "linear attention layers",
    "recurrent_gemma": "recurrent layers",
    "t5": "an encoder and a decoder",
    "mt5": "an encoder and a decoder",
    "umt5": "an encoder and a decoder",
    "longt5": "an encoder and a decoder",
    "bart": "an encoder and a decoder",
    "whisper": "an encoder and a decoder",
}
"""Model type -> what the transformer formulas do not cover."""
NESTED = {
    "gemma3": "gemma3_text",
    "llava": "llama",
    "mistral3": "mistral",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_text": "qwen3",
    "internvl_chat": "qwen2",
}
"""Type of the text part when text_config does not say, or names a variant of it."""
TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal configurations keep the dimensions of their language model."""
TRAINED_IN_BF16 = ("t5", "mt5", "umt5", "longt5")
"""Overflow in fp16 (huggingface/transformers issue 5651; a traced activation was 66246)."""


def _head_norms(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {"layer_extra": 2 * dims["head_dim"]}


def _width_norms(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {"layer_extra": (dims["num_heads"] + dims["num_key_value_heads"]) * dims["head_dim"]}


def _head_bias(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {"head_extra": dims["vocab_size"]}


def _experts(config: Config, dims: dict[str, int], key: str, **more: Any) -> dict[str, Any]:
    return {"num_experts": config.get(key), "experts_per_token": config.get("num_experts_per_tok"), **more}


def _local_experts(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return _experts(config, dims, "num_local_experts")


def _qwen_experts(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    """Return the mixture of Qwen2 and Qwen3: every decoder_sparse_step-th layer, minus mlp_only_layers."""
    step, skipped = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    dense = sum(1 for i in range(min(dims["num_layers"], 10_000)) if i in skipped or (i + 1) % step)
    changes = _experts(config, dims, "num_experts" if "num_experts" in config else "num_local_experts")
    changes.update(num_dense_layers=dense, dense_ffn_size=config.get("intermediate_size") or 0)
    if config.get("shared_expert_intermediate_size"):
        changes.update(shared_size=config["shared_expert_intermediate_size"], shared_gate=True)
    else:
        changes.update(_head_norms(config, dims))
    return changes


def _olmoe(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {**_experts(config, dims, "num_experts"), **_width_norms(config, dims)}


def _phimoe(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {**_local_experts(config, dims), "head_extra": dims["vocab_size"] if config.get("lm_head_bias") else 0}


def _gpt_oss(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {**_local_experts(config, dims), "router_bias": True, "layer_extra": dims["num_heads"]}


def _opt(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    before = config.get("do_layer_norm_before", True)
    width = config.get("word_embed_proj_dim") or dims["hidden_size"]
    return {
        "embedding_extra": (dims["positions"] + 2) * dims["hidden_size"],
        "embedding_width": width,
        "final_norms": 1 if before else 0,
    }


def _bloom(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {"embedding_extra": 2 * dims["hidden_size"]}


def _falcon(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    new, parallel = config.get("new_decoder_architecture", False), config.get("parallel_attn", True)
    groups = config.get("num_kv_heads") or dims["num_heads"]
    one = not new and config.get("multi_query", True)
    norms = (config.get("num_ln_in_parallel_attn") or 2) if new else (1 if parallel else 2)
    return {"num_key_value_heads": 1 if one else groups, "norms_per_layer": norms}


def _bigcode(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    heads = 1 if config.get("multi_query", True) else dims["num_heads"]
    return {"num_key_value_heads": heads, "embedding_extra": dims["positions"] * dims["hidden_size"]}


def _positions(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return {"embedding_extra": dims["positions"] * dims["hidden_size"]}


def _masked(config: Config, dims: dict[str, int], types: int) -> dict[str, Any]:
    """Return embeddings (positions, types, norm) and head (dense layer, norm, bias) of a masked language model."""
    hidden = dims["hidden_size"]
    return {
        "embedding_extra": (dims["positions"] + types + 2) * hidden,
        "head_extra": hidden * hidden + 3 * hidden + dims["vocab_size"],
    }


def _bert(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    types = config.get("type_vocab_size", 2)
    return _masked(config, dims, types if isinstance(types, int) else 2)


def _distilbert(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return _masked(config, dims, 0)


def _vit(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    """Return patches, class token and positions, and a classifier of num_labels (2 when it says nothing)."""
    hidden, patch = dims["hidden_size"], config.get("patch_size", 16)
    labels = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    pixels = patch * patch * config.get("num_channels", 3)
    tokens = (config.get("image_size", 224) // patch) ** 2 + 1
    return {
        "positions": tokens,
        "embedding_extra": (pixels + 1) * hidden + hidden + tokens * hidden,
        "head_extra": (hidden + 1) * labels,
    }


def _cohere(config: Config, dims: dict[str, int]) -> dict[str, Any]:
    return _width_norms(config, dims) if config.get("use_qk_norm") else {}


_LLAMA = Family(query_key_value_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_ALL_BIASED: dict[str, Any] = {
    "gated": False,
    "query_key_value_bias": True,
    "output_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
}
_MASKED: dict[str, Any] = {
    **_ALL_BIASED,
    "encoder": True,
    "tied": True,
    "final_norm": False,
    "learned_positions": True,
}
_GPT2 = Family(
    **_ALL_BIASED,
    tied=True,
    learned_positions=True,
    names=GPT2_NAMES,
    defaults={"n_positions": 1024},
    special=_positions,
)
_GPTJ = Family(gated=False, mlp_bias=True, norm_bias=True, norms_per_layer=1, names=GPT2_NAMES, special=_head_bias)
_BERT = Family(**_MASKED, defaults={"max_position_embeddings": 512}, special=_bert)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(defaults={"num_key_value_heads": 8}),
    "mixtral": Family(defaults={"num_local_experts": 8, "num_experts_per_tok": 2}, special=_local_experts),
    "qwen2": Family(query_key_value_bias=True),
    "qwen2_moe": Family(
        query_key_value_bias="qkv_bias",
        names={"ffn_size": "moe_intermediate_size"},
        defaults={"qkv_bias": True},
        special=_qwen_experts,
    ),
    "qwen3": Family(query_key_value_bias="attention_bias", output_bias="attention_bias", special=_head_norms),
    "qwen3_moe": Family(
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        names={"ffn_size": "moe_intermediate_size"},
        special=_qwen_experts,
    ),
    "gemma": Family(tied=True, query_key_value_bias="attention_bias", output_bias="attention_bias"),
    "gemma2": Family(tied=True, query_key_value_bias="attention_bias", output_bias="attention_bias", norms_per_layer=4),
    "gemma3_text": Family(
        tied=True,
        fp16_overflows=True,
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        norms_per_layer=4,
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
        },
        special=_head_norms,
    ),
    "phi": Family(**_ALL_BIASED, norms_per_layer=1, special=_head_bias, refuse={"qk_layernorm": False}),
    "phi3": Family(),
    "phimoe": Family(
        query_key_value_bias="attention_bias", output_bias="attention_bias", norm_bias=True, special=_phimoe
    ),
    "gpt2": _GPT2,
    "gpt_neo": Family(
        gated=False,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        tied=True,
        learned_positions=True,
        names={"num_layers": "num_layers", "num_heads": "num_heads"},
        special=_positions,
    ),
    "gpt_neox": Family(
        gated=False,
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=True,
        norm_bias=True,
        defaults={"attention_bias": True},
    ),
    "gptj": _GPTJ,
    "codegen": _GPTJ,
    "gpt_bigcode": Family(
        **_ALL_BIASED,
        tied=True,
        learned_positions=True,
        names=GPT2_NAMES,
        defaults={"n_positions": 1024},
        special=_bigcode,
    ),
    "opt": Family(
        **_ALL_BIASED,
        tied=True,
        learned_positions=True,
        names={"ffn_size": "ffn_dim"},
        defaults={"max_position_embeddings": 2048},
        special=_opt,
        refuse={"enable_bias": True, "layer_norm_elementwise_affine": True},
    ),
    "bloom": Family(**_ALL_BIASED, tied=True, names={"num_layers": "n_layer", "num_heads": "n_head"}, special=_bloom),
    "falcon": Family(
        gated=False,
        tied=True,
        query_key_value_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        norm_bias=True,
        names={"ffn_size": "ffn_hidden_size"},
        special=_falcon,
    ),
    "olmo": Family(query_key_value_bias="attention_bias", output_bias="attention_bias", norm_weight=False),
    "olmo2": Family(query_key_value_bias="attention_bias", output_bias="attention_bias", special=_width_norms),
    "olmo3": Family(query_key_value_bias="attention_bias", output_bias="attention_bias", special=_width_norms),
    "olmoe": Family(query_key_value_bias="attention_bias", output_bias="attention_bias", special=_olmoe),
    "starcoder2": Family(
        gated=False,
        tied=True,
        query_key_value_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        norm_bias=True,
        defaults={"use_bias": True},
    ),
    "stablelm": Family(
        query_key_value_bias="use_qkv_bias",
        norm_bias=True,
        refuse={"qk_layernorm": False, "use_parallel_residual": False},
    ),
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": Family(
        **_MASKED,
        names={"hidden_size": "dim", "num_layers": "n_layers", "num_heads": "n_heads", "ffn_size": "hidden_dim"},
        defaults={"max_position_embeddings": 512},
        special=_distilbert,
    ),
    "vit": Family(
        gated=False,
        query_key_value_bias="qkv_bias",
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        encoder=True,
        learned_positions=True,
        defaults={"qkv_bias": True, "vocab_size": 0},
        special=_vit,
    ),
    "cohere": Family(
        tied=True,
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        norms_per_layer=1,
        special=_cohere,
    ),
    "granite": _LLAMA,
    "smollm3": Family(
        tied=True, query_key_value_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "gpt_oss": Family(
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias=True,
        defaults={"attention_bias": True},
        special=_gpt_oss,
    ),
    "glm4": Family(query_key_value_bias="attention_bias", norms_per_layer=4),
    "seed_oss": Family(
        query_key_value_bias="attention_bias",
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        defaults={"attention_bias": True},
    ),
    "nemotron": Family(
        gated=False,
        query_key_value_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        norm_bias=True,
    ),
    "arcee": Family(
        gated=False, query_key_value_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
    ),
}
