from __future__ import annotations

import math

import pytest
import torch
from runtime_bundle import configuration

from stratadvisor.runtime import model, optimizer
from stratadvisor.runtime.config import ConfigError, parse
from stratadvisor.runtime.engine import materialize


def test_the_rate_rises_falls_like_a_cosine_and_ends_at_a_tenth() -> None:
    config = parse(configuration(learning_rate=1.0, total_steps=110))
    rates = [optimizer.learning_rate(config, step, 10) for step in range(120)]
    assert rates[:11] == pytest.approx([(s + 1) / 11 for s in range(10)] + [1.0])
    assert rates[60] == pytest.approx(0.1 + 0.9 * 0.5)  # half way down the cosine
    assert rates[110:] == pytest.approx([0.1] * 10)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_without_an_end_the_rate_stays() -> None:
    config = parse(configuration(learning_rate=1.0, total_steps=0))
    assert optimizer.learning_rate(config, 10**6, 5) == 1.0


def test_matrices_decay_and_vectors_do_not() -> None:
    module = model.build(parse(configuration()))
    matrices, vectors = optimizer.parameter_groups(module, 0.1)
    assert matrices["weight_decay"] == 0.1
    assert vectors["weight_decay"] == 0.0
    assert all(p.ndim == 2 for p in matrices["params"])
    assert len(vectors["params"]) == 5  # two norms in each of two layers, and the last
    total = sum(p.numel() for group in (matrices, vectors) for p in group["params"])
    assert total == sum(p.numel() for p in module.parameters())


def test_the_scale_halves_on_overflow_and_doubles_after_a_quiet_while() -> None:
    scaler = optimizer.LossScaler(enabled=True, growth_interval=3)
    scaler.update(finite=False)
    assert scaler.scale == 32768
    for _ in range(3):
        scaler.update(finite=True)
    assert scaler.scale == 65536
    off = optimizer.LossScaler(enabled=False)
    off.update(finite=False)
    assert off.scale == 1


@pytest.mark.parametrize("name", ["adamw", "sgd", "adafactor", "muon"])
def test_each_optimizer_steps_downhill_and_gives_its_state_back(name: str) -> None:
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    config = parse(configuration(optimizer=name, weight_decay=0.0))
    module = model.build(config)
    materialize(module, torch.device("cpu"), seed=0)
    tokens = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
    steps = optimizer.build(config, module)
    optimizer.set_learning_rate(steps, 1e-3)
    first = module(tokens[:, :-1], tokens[:, 1:]) / 64
    first.backward()
    steps.step()
    steps.zero_grad()
    assert (module(tokens[:, :-1], tokens[:, 1:]) / 64).item() < first.item()
    again = optimizer.build(config, module)
    again.load_state_dict(steps.state_dict())
    assert all(math.isclose(group["lr"], 1e-3) for group in again.param_groups)


def test_what_cannot_run_here_is_told() -> None:
    module = model.build(parse(configuration()))
    with pytest.raises(ConfigError, match="adamw8bit needs a GPU"):
        optimizer.build(parse(configuration(optimizer="adamw8bit")), module)
    if hasattr(torch.optim, "Muon"):
        with pytest.raises(ConfigError, match="whole matrices"):
            optimizer.build(parse(configuration(optimizer="muon", engine="fsdp2")), module)
