from __future__ import annotations

import pytest
from time_cases import LLAMA_7B

from stratadvisor.costs.flops import (
    forward_attention_flops_per_sequence,
    forward_linear_flops_per_token,
    model_flops_per_sequence,
)


def test_linear_flops_are_twice_the_weights_without_the_embedding() -> None:
    # 32 layers of 4 h^2 attention and 3 h f MLP, and the output projection; the embedding is a look-up
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000
    assert forward_linear_flops_per_token(LLAMA_7B) == 2 * weights
    assert 2 * weights == pytest.approx(2 * (LLAMA_7B.num_parameters - 4096 * 32000), rel=1e-3)


def test_causal_attention_is_half_of_an_encoders() -> None:
    encoder = LLAMA_7B.model_copy(update={"family": "encoder"})
    causal = forward_attention_flops_per_sequence(LLAMA_7B, 2048)
    assert causal == 4 * 2048**2 * 4096 * 32 / 2
    assert forward_attention_flops_per_sequence(encoder, 2048) == 2 * causal


def test_training_is_three_forwards_and_adapters_save_the_weight_gradient() -> None:
    forward = forward_linear_flops_per_token(LLAMA_7B) * 2048
    attention = forward_attention_flops_per_sequence(LLAMA_7B, 2048)
    assert model_flops_per_sequence(LLAMA_7B, 2048) == 3 * (forward + attention)
    assert model_flops_per_sequence(LLAMA_7B, 2048, "lora") == 2 * forward + 3 * attention


def test_a_mixture_counts_the_experts_a_token_passes() -> None:
    experts = LLAMA_7B.model_copy(update={"num_experts": 8, "num_experts_per_token": 2})
    router = 2 * 32 * 4096 * 8
    one_mlp = 2 * 32 * 3 * 4096 * 11008
    assert forward_linear_flops_per_token(experts) == pytest.approx(
        forward_linear_flops_per_token(LLAMA_7B) + one_mlp + router
    )


def test_a_counted_module_uses_its_count() -> None:
    module = LLAMA_7B.model_copy(update={"family": "module", "flops_per_item": 8.2e9})
    assert model_flops_per_sequence(module, 1) == 3 * 8.2e9
