from __future__ import annotations

import math

import pytest
import torch
from runtime_bundle import TINY, configuration

from stratadvisor.catalog.hugging_face import shape_from_config
from stratadvisor.runtime import model
from stratadvisor.runtime.config import ConfigError, TrainConfig, parse
from stratadvisor.runtime.engine import materialize

MOE = TINY | {
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "num_dense_layers": 1,
    "dense_ffn_hidden_size": 96,
}


def config(**changes: object) -> TrainConfig:
    return parse(configuration(**changes))


def built(**changes: object) -> torch.nn.Module:
    result = model.build(config(**changes))
    materialize(result, torch.device("cpu"), seed=0)
    return result


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def batch(vocab_size: int = 256, length: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(vocab_size, (3, length + 1), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def test_the_parameters_of_a_dense_decoder_add_up() -> None:
    # per layer: q 64*64, k and v 64*32 each, output 64*64, three MLP matrices 64*128, two norms of 64
    layer = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert count(model.build(config())) == 2 * 256 * 64 + 2 * layer + 64
    assert count(model.build(config(model=TINY | {"tied_embeddings": True}))) == 256 * 64 + 2 * layer + 64


def test_the_parameters_of_a_mixture_add_up() -> None:
    attention = 64 * 64 * 2 + 2 * 64 * 32 + 2 * 64
    dense, expert = 3 * 64 * 96, 3 * 64 * 128
    mixture = 4 * expert + expert + 4 * 64  # experts, the shared one, the router
    assert count(model.build(config(model=MOE))) == 2 * 256 * 64 + 2 * attention + dense + mixture + 64


@pytest.mark.parametrize(
    "published",
    [
        {  # meta-llama/Meta-Llama-3-8B config.json
            "model_type": "llama",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": False,
        },
        {  # mistralai/Mixtral-8x7B-v0.1 config.json
            "model_type": "mixtral",
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
        {  # openai-community/gpt2 config.json
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
    ],
    ids=["llama-3-8b", "mixtral-8x7b", "gpt2"],
)
def test_a_published_model_has_the_counted_parameters(published: dict[str, object]) -> None:
    shape = shape_from_config(published, "published")
    module = model.build(config(model=shape.model_dump(mode="json")))
    assert all(p.is_meta for p in module.parameters())
    assert count(module) == shape.num_parameters


def test_an_untrained_model_is_as_good_as_guessing() -> None:
    inputs, labels = batch()
    loss = built()(inputs, labels) / labels.numel()
    assert math.isclose(loss.item(), math.log(256), rel_tol=0.03)


def test_a_decoder_does_not_see_the_future_and_an_encoder_does() -> None:
    def change_of_first_position(family: str) -> float:
        module = built(model=TINY | {"family": family})
        inputs, labels = batch()
        labels = torch.full_like(labels, -100)
        labels[:, 0] = 7
        changed = inputs.clone()
        changed[:, -1] = (inputs[:, -1] + 1) % 256
        return abs((module(inputs, labels) - module(changed, labels)).item())

    assert change_of_first_position("decoder") == 0.0
    assert change_of_first_position("encoder") > 0.0


def test_positions_matter_through_rotation_or_a_table() -> None:
    for learned in (False, True):
        attention_sees_order = built(model=TINY | {"learned_positions": learned, "family": "encoder"})
        inputs, _ = batch(length=8)
        labels = torch.full_like(inputs, -100)
        labels[:, 0] = 3
        swapped = inputs.clone()
        swapped[:, [5, 6]] = inputs[:, [6, 5]]
        assert attention_sees_order(inputs, labels).item() != attention_sees_order(swapped, labels).item()


def test_ignored_labels_do_not_count() -> None:
    module = built()
    inputs, labels = batch()
    half = labels.clone()
    half[:, 8:] = -100
    other = labels.clone()
    other[:, :8] = -100
    whole = module(inputs, labels)
    assert torch.allclose(module(inputs, half) + module(inputs, other), whole, rtol=1e-5)


@pytest.mark.parametrize("shape", [TINY, MOE], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", ["selective", "full"])
def test_recomputing_activations_changes_no_gradient(shape: dict[str, object], kind: str) -> None:
    gradients = []
    for checkpointing in ("none", kind):
        module = built(model=shape, activation_checkpointing=checkpointing)
        module(*batch()).backward()
        gradients.append([p.grad for p in module.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert plain is not None
        assert again is not None
        assert torch.allclose(plain, again, rtol=1e-4, atol=1e-5)


def test_a_mixture_with_identical_experts_is_one_mlp() -> None:
    module = model.MixtureOfExperts(config(model=MOE | {"num_shared_experts": 0}).model)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            torch.nn.init.normal_(parameter, std=0.1)
            if name != "router.weight":
                parameter.copy_(parameter[:1].expand_as(parameter))
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1))
    assert module.gate is not None
    inner = torch.nn.functional.silu(x @ module.gate[0].T) * (x @ module.up[0].T)
    assert torch.allclose(module(x), inner @ module.down[0].T, atol=1e-5)


def test_initial_values_depend_on_name_and_seed_alone() -> None:
    first, second = built(), built()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = model.build(config())
    materialize(other, torch.device("cpu"), seed=1)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
    assert not torch.equal(first.layers[0].mlp.up.weight, first.layers[1].mlp.up.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "model.num_layers must be at least 1"),
        ({"num_key_value_heads": 3}, "must be a multiple"),
        ({"head_dim": 15}, "must be even"),
        ({"learned_positions": True, "max_sequence_length": 0}, "exceeds the 0 learned positions"),
        ({"learned_positions": True, "max_sequence_length": 16}, "exceeds the 16 learned positions"),
        (MOE | {"num_experts_per_token": 9}, "exceeds num_experts"),
        (MOE | {"mlp_bias": True}, "experts with a bias"),
        ({"family": "module", "factory": "no_such_package:make"}, "cannot be imported"),
        ({"family": "module", "factory": "math:pi"}, "is not callable"),
    ],
)
def test_impossible_dimensions_are_refused_in_words(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model.build(config(model=TINY | changes))
