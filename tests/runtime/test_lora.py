from __future__ import annotations

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime import model
from stratadvisor.runtime.config import ConfigError, parse
from stratadvisor.runtime.engine import cast_storage, materialize


def test_only_adapters_train_and_they_have_rank_times_widths() -> None:
    module = model.build(parse(configuration(method="lora", lora_rank=4)))
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    # per layer: query and output 64 -> 64, key and value 64 -> 32, gate and up 64 -> 128, down 128 -> 64
    widths = 2 * (64 + 64) + 2 * (64 + 32) + 2 * (64 + 128) + (128 + 64)
    assert trainable == 2 * 4 * widths


def test_a_fresh_adapter_changes_nothing_and_the_first_step_trains_it() -> None:
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    adapted = model.build(parse(configuration(method="lora")))
    materialize(adapted, torch.device("cpu"), seed=0)
    plain = model.build(parse(configuration()))
    materialize(plain, torch.device("cpu"), seed=0)
    weights = {name.replace(".base.", "."): value for name, value in adapted.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    loss = adapted(tokens[:, :-1], tokens[:, 1:])
    assert torch.allclose(loss, plain(tokens[:, :-1], tokens[:, 1:]))
    loss.backward()
    ups = [p for name, p in adapted.named_parameters() if name.endswith("adapter_up")]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ups)
    assert all(p.grad is None for name, p in adapted.named_parameters() if "adapter" not in name)


def test_frozen_weights_are_stored_in_16_bit_and_adapters_are_not() -> None:
    config = parse(configuration(method="lora", precision="bf16"))
    module = model.build(config)
    cast_storage(module, config)
    types = {"adapter" in name: p.dtype for name, p in module.layers.named_parameters() if "norm" not in name}
    assert types == {True: torch.float32, False: torch.bfloat16}


def test_qlora_without_a_gpu_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match="qlora needs a GPU"):
        model.build(parse(configuration(method="qlora")))


def test_stacked_experts_of_a_frozen_mixture_are_stored_in_16_bit_too() -> None:
    shape = configuration()["model"] | {"num_experts": 4, "num_experts_per_token": 2}
    config = parse(configuration(method="lora", precision="bf16", model=shape))
    module = model.build(config)
    cast_storage(module, config)
    stacked = [p for p in module.parameters() if p.ndim == 3]
    assert len(stacked) == 2 * 3  # gate, up and down of two layers
    assert {p.dtype for p in stacked} == {torch.bfloat16}
    materialize(module, torch.device("cpu"), seed=0)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = module(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    ups = [p for name, p in module.named_parameters() if name.endswith("adapter_up")]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ups)
