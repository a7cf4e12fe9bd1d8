from __future__ import annotations

from typing import Any

import pytest

from stratadvisor.catalog.hugging_face import shape_from_config

SMALL: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 160}
GROUPED = {**SMALL, "num_key_value_heads": 2}
NO_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2: dict[str, Any] = {"n_embd": 96, "n_layer": 3, "n_head": 6, "n_positions": 64}

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", GROUPED),
    ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("llama", {**GROUPED, "head_dim": 32}),
    ("mistral", {**GROUPED, "head_dim": 24}),
    ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("qwen2", GROUPED),
    (
        "qwen2_moe",
        {
            **GROUPED,
            "moe_intermediate_size": 40,
            "shared_expert_intermediate_size": 80,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "mlp_only_layers": [1],
        },
    ),
    ("qwen3", {**GROUPED, "head_dim": 32}),
    ("qwen3_moe", {**GROUPED, "head_dim": 32, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 2}),
    ("gemma", {**GROUPED, "head_dim": 32}),
    ("gemma2", {**GROUPED, "head_dim": 32}),
    ("gemma3_text", {**GROUPED, "head_dim": 32}),
    ("phi", SMALL),
    ("phi3", GROUPED),
    ("phimoe", {**GROUPED, "num_local_experts": 4, "lm_head_bias": True, "attention_bias": True}),
    ("gpt2", GPT2),
    ("gpt2", {**GPT2, "n_inner": 200}),
    ("gpt_neo", {"hidden_size": 96, "num_layers": 2, "num_heads": 6, "attention_types": [[["global", "local"], 1]]}),
    ("gpt_neox", SMALL),
    ("gpt_neox", {**SMALL, "attention_bias": False}),
    ("gptj", {**GPT2, "rotary_dim": 8}),
    ("codegen", {**GPT2, "n_head": 8, "rotary_dim": 8}),
    ("gpt_bigcode", GPT2),
    ("gpt_bigcode", {**GPT2, "multi_query": False}),
    ("opt", {**SMALL, "ffn_dim": 200, "word_embed_proj_dim": 96}),
    ("opt", {**SMALL, "ffn_dim": 200, "word_embed_proj_dim": 48, "do_layer_norm_before": False}),
    ("bloom", {"hidden_size": 96, "n_layer": 3, "n_head": 6}),
    ("falcon", SMALL),
    ("falcon", {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    ("falcon", {**SMALL, "parallel_attn": False, "multi_query": False, "num_kv_heads": 6, "alibi": True}),
    ("olmo", GROUPED),
    ("olmo2", GROUPED),
    ("olmo3", GROUPED),
    ("olmoe", {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2}),
    ("starcoder2", GROUPED),
    ("stablelm", {**GROUPED, "use_qkv_bias": True}),
    ("bert", {**SMALL, "max_position_embeddings": 64}),
    ("roberta", {**SMALL, "max_position_embeddings": 64, "type_vocab_size": 1}),
    ("xlm-roberta", {**SMALL, "max_position_embeddings": 64}),
    ("distilbert", {"dim": 96, "n_layers": 3, "n_heads": 6, "hidden_dim": 160, "max_position_embeddings": 64}),
    ("vit", {**SMALL, "image_size": 32, "patch_size": 8}),
    ("cohere", {**GROUPED, "use_qk_norm": True}),
    ("granite", GROUPED),
    ("smollm3", GROUPED),
    ("gpt_oss", {**GROUPED, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("glm4", {**GROUPED, "head_dim": 16}),
    ("seed_oss", {**GROUPED, "head_dim": 16}),
    ("nemotron", {**GROUPED, "head_dim": 16}),
    ("arcee", {**GROUPED, "head_dim": 16}),
]


def _built_parameters(model_type: str, values: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the parameters of the model that transformers builds, and the configuration it used."""
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.AutoConfig.for_model(model_type, **values)
    if model_type == "vit":
        factory = transformers.AutoModelForImageClassification
    elif model_type in ("bert", "roberta", "xlm-roberta", "distilbert"):
        factory = transformers.AutoModelForMaskedLM
    else:
        factory = transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = factory.from_config(config)
    model.tie_weights()
    return sum(p.numel() for p in model.parameters()), config.to_dict()


@pytest.mark.parametrize(("model_type", "values"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_parameters_equal_those_of_the_model_transformers_builds(model_type: str, values: dict[str, Any]) -> None:
    small_vocabulary = {} if model_type == "vit" else {"vocab_size": 320}
    built, config = _built_parameters(model_type, {**NO_SPECIAL, **small_vocabulary, **values})
    assert shape_from_config(config, model_type).num_parameters == built
