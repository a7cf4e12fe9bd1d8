"""Cases O-58 to O-63: a model's dimensions from its configuration."""

from __future__ import annotations

import json

import pytest
from case_support import GIB, declare, files_of, plan_for, shape_of

from stratadvisor import pipeline
from stratadvisor.catalog.hugging_face import read_config, shape_from_config
from stratadvisor.costs.flops import forward_linear_flops_per_token
from stratadvisor.costs.parameters import count_parameters
from stratadvisor.errors import ModelError, UsageError

TEXT = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
VISION = {"hidden_size": 1280, "num_hidden_layers": 2, "intermediate_size": 5120, "patch_size": 14}


@pytest.mark.parametrize("where", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_o58(where: str) -> None:
    """The language model lies inside, under one of four names; the vision tower has a width of its own."""
    shape = shape_from_config({"model_type": "qwen2_vl", where: TEXT, "vision_config": VISION}, "m")
    assert (shape.hidden_size, shape.num_layers) == (1024, 4)
    matrices = 2 * (4 * 1280 * 1280 + 2 * 1280 * 5120)
    assert shape.num_vision_parameters == pytest.approx(matrices, rel=0.05)  # and biases, norms, patches
    assert count_parameters(shape).total == shape.num_parameters + shape.num_vision_parameters
    cluster = declare("2xA100-80GB-SXM")
    plan = plan_for(cluster, shape, strategy="zero3")
    zero = json.loads(files_of(plan, cluster)["ds_config.json"])["zero_optimization"]
    assert zero["stage3_param_persistence_threshold"] == 10 * 1024
    assert any("vision tower" in text for text in plan.assumptions)


def qwen_half(tied: bool) -> dict:
    return {
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
    }


def test_o59() -> None:
    """Tied embeddings: once in memory, and the output's products all the same."""
    tied, untied = (shape_from_config(qwen_half(flag), "q") for flag in (True, False))
    assert tied.num_parameters == 494_032_768
    assert untied.num_parameters == 630_167_424 == tied.num_parameters + 151936 * 896
    assert forward_linear_flops_per_token(tied) == forward_linear_flops_per_token(untied)


def test_o60(tmp_path) -> None:
    """8x7B shares attention: 46.7B in memory, 12.9B for a token; as a size it is refused with a hint."""
    mixtral = {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(mixtral))
    shape = read_config(tmp_path)
    assert shape.num_parameters == 46_702_792_704
    assert shape.num_active_parameters == pytest.approx(12.88e9, rel=0.005)
    expert = 3 * 4096 * 14336 * 32
    assert shape.num_parameters - shape.num_active_parameters == 6 * expert
    for text in ("8x7B", "8X7b", "8 x 22B"):
        with pytest.raises(UsageError, match="mixture of experts") as refused:
            pipeline.resolve_model(model_size=text, model=None)
        assert "46.7B" in refused.value.hint
    assert pipeline.resolve_model(model_size=None, model="mixtral-8x7b").num_parameters == shape.num_parameters


def test_o61() -> None:
    """An explicit head size wins: 64 x 128 is not 5120."""
    config = {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 25600,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    }
    shape = shape_from_config(config, "q")
    assert shape.num_parameters == pytest.approx(32_762_123_264, rel=0.005)
    derived = shape_from_config({k: v for k, v in config.items() if k != "head_dim"}, "q")
    missing = 2 * 64 * 5120 * (64 * 48 + 8 * 48)  # queries and output, keys and values, of 128 - 80
    assert shape.num_parameters - derived.num_parameters == pytest.approx(missing, rel=0.001)
    assert 16 * missing > 36e9 * 0.9


def test_o62() -> None:
    """GPT-2's names; n_inner null means four times the width; a layout nobody knows fails and is never zero."""
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None, "n_positions": 1024}
    gpt2 |= {"vocab_size": 50257}
    small = shape_from_config(gpt2, "gpt2")
    assert (small.num_parameters, small.ffn_hidden_size, small.gated_mlp) == (124_439_808, 4 * 768, False)
    large = shape_from_config(gpt2 | {"n_layer": 36, "n_embd": 1280, "n_head": 20}, "gpt2-large")
    assert large.num_parameters == 774_030_080
    with pytest.raises(ModelError):
        shape_from_config({"model_type": "nobody_knows", "layers": 12, "width": 768}, "x")
    with pytest.raises(ModelError, match="n_layer"):
        shape_from_config({k: v for k, v in gpt2.items() if k != "n_layer"}, "x")


def test_o63() -> None:
    """gemma-3-4b leaves out heads and vocabulary: its class's defaults, not a larger sibling's and not zero."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    shape = shape_from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}}, "g")
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (8, 4, 256)
    assert (shape.vocab_size, shape.tied_embeddings) == (262208, True)
    assert shape.num_parameters == pytest.approx(3.880e9, rel=0.01)
    larger = shape_from_config({**text, "num_attention_heads": 16, "num_key_value_heads": 8}, "g")
    assert larger.num_parameters == pytest.approx(4.415e9, rel=0.01)
    assert shape_of("7B").num_parameters > GIB
