from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime import model
from stratadvisor.runtime.config import ConfigError, parse
from stratadvisor.runtime.engine import cast_storage, materialize
from stratadvisor.runtime.lora import LoRALinear, quantize


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


def test_qlora_on_another_device_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match="the device here is mps: use lora instead"):
        model.build(parse(configuration(method="qlora", device_kind="mps")))


def test_qlora_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match="pip install bitsandbytes"):
        model.build(parse(configuration(method="qlora")))


def needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed")


TOKENS = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))


def loss_of(module: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = module(TOKENS[:, :-1], TOKENS[:, 1:])
    return loss


def quantized() -> torch.nn.Module:
    module = model.build(parse(configuration(method="qlora")))
    materialize(module, torch.device("cpu"), seed=0)
    quantize(module, torch.device("cpu"))
    return module


@needs("bitsandbytes")
def test_qlora_trains_adapters_over_weights_of_half_a_byte() -> None:
    module = quantized()
    whole = model.build(parse(configuration(method="lora")))
    materialize(whole, torch.device("cpu"), seed=0)
    base = module.layers[0].attention.query.base.weight
    assert base.dtype == torch.uint8
    assert base.numel() == 64 * 64 // 2  # two weights of four bits in a byte
    # NF4 of normal weights: relative error of a product about 0.1 (arXiv:2305.14314, block 64)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    exact = torch.nn.functional.linear(x, whole.layers[0].attention.query.base.weight)
    error = (module.layers[0].attention.query.base(x) - exact).norm() / exact.norm()
    assert 0.01 < float(error) < 0.2
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    before = loss_of(module).item()
    for _ in range(10):
        optimizer.zero_grad()
        loss_of(module).backward()
        optimizer.step()
    assert loss_of(module).item() < before - 1
    assert all("adapter" in name for name, p in module.named_parameters() if p.requires_grad)


@needs("bitsandbytes")
def test_a_checkpoint_of_4_bit_weights_is_read_with_its_scales(tmp_path: Path) -> None:
    first = quantized()
    with torch.no_grad():
        for name, parameter in first.named_parameters():
            if name.endswith("adapter_up"):
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(2))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    config = parse(configuration(method="qlora"))
    second = model.build(config)
    materialize(second, torch.device("cpu"), seed=7)  # other weights, and other scales
    quantize(second, torch.device("cpu"))
    assert loss_of(second).item() != pytest.approx(loss_of(first).item(), abs=1e-3)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(loss_of(first), loss_of(second))


@needs("peft")
def test_an_adapter_is_the_one_of_peft() -> None:
    from peft.tuners.lora import Linear, LoraConfig

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0)  # alpha twice the rank, as here
    base = torch.nn.Linear(6, 5)
    own = LoRALinear(copy.deepcopy(base), 4)
    theirs = Linear(copy.deepcopy(base), "default", config=config, r=4, lora_alpha=8)
    with torch.no_grad():
        for ours, other in ((own.adapter_down, theirs.lora_A), (own.adapter_up, theirs.lora_B)):
            ours.normal_(generator=torch.Generator().manual_seed(3))
            other["default"].weight.copy_(ours)
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(4))
    assert torch.allclose(own(x), theirs(x), atol=1e-5)
    own(x).square().sum().backward()
    theirs(x).square().sum().backward()
    for ours, other in ((own.adapter_down, theirs.lora_A), (own.adapter_up, theirs.lora_B)):
        assert ours.grad is not None
        assert torch.allclose(ours.grad, other["default"].weight.grad, rtol=1e-4, atol=1e-4)


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
