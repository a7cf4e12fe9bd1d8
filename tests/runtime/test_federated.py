from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_bundle import configuration, group

from stratadvisor.runtime import data, model
from stratadvisor.runtime.config import ConfigError, TrainConfig, parse
from stratadvisor.runtime.federated import Client, OuterStep, Place, Weights

LOCAL_STEPS = 8


def config() -> TrainConfig:
    """Two sites of one device each: 3 sequences a step on the first, 1 on the second."""
    groups = [
        group(devices_per_node=1, micro_batch_size=2, batch_per_device=3),
        group(devices_per_node=1, micro_batch_size=1, gradient_accumulation_steps=1, batch_per_device=1),
    ]
    return parse(configuration(engine="diloco", groups=groups, learning_rate=3e-3))


def client(place: Place, build_data: Any = data.token_dataset) -> Client:
    return Client(config(), model.build, build_data, place)


def mean(rounds: list[tuple[Weights, int]]) -> Weights:
    total = sum(examples for _, examples in rounds)
    return {name: sum(w[name] * n / total for w, n in rounds) for name in rounds[0][0]}


def test_sites_that_meet_by_weights_lower_the_loss() -> None:
    sites = [client(Place(group=0)), client(Place(group=1))]
    weights = sites[0].weights()
    outer = OuterStep(weights, 1.0, 0.0)
    losses = []
    for _ in range(3):
        done = [site.train(weights, LOCAL_STEPS) for site in sites]
        # 32 tokens a sequence; 3 and 1 sequences a step
        assert [d.examples for d in done] == [LOCAL_STEPS * 3 * 32, LOCAL_STEPS * 1 * 32]
        losses.append(sum(d.loss * d.examples for d in done) / sum(d.examples for d in done))
        weights = outer(mean([(d.weights, d.examples) for d in done]))
    assert losses[0] > losses[1] > losses[2]


def test_the_outer_step_is_the_mean_or_nesterovs() -> None:
    start = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([3.0])}
    moved = {"a": torch.tensor([[0.5, 2.0]]), "b": torch.tensor([1.0])}
    found = OuterStep(start, 1.0, 0.0)(moved)
    assert all(torch.equal(found[name], moved[name]) for name in start)
    outer = OuterStep(start, 0.7, 0.9)
    first = outer(moved)
    # d = 0.5, 0, 2; m = d; w - 0.7 (d + 0.9 m) = w - 1.33 d
    assert first["a"].tolist()[0] == pytest.approx([1 - 1.33 * 0.5, 2.0])
    assert first["b"].tolist() == pytest.approx([3 - 1.33 * 2])
    again = OuterStep(start, 0.7, 0.9)
    resumed = again.load_state(outer.state())
    assert torch.equal(resumed["b"], first["b"])
    assert torch.equal(again(moved)["a"], outer(moved)["a"])


def test_a_site_keeps_its_optimizer_and_its_place_from_process_to_process(tmp_path: Path) -> None:
    start = client(Place()).weights()
    whole = client(Place())
    expected = whole.train(whole.train(start, 2).weights, 2).weights
    first = client(Place(directory=tmp_path)).train(start, 2)
    later = client(Place(directory=tmp_path))
    assert (later.step, later.samples) == (2, 6)
    found = later.train(first.weights, 2).weights
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    later.forget()
    assert all(
        torch.equal(value, whole_value)
        for value, whole_value in zip(
            later.train(start, 2).weights.values(), client(Place()).train(start, 2).weights.values(), strict=True
        )
    )


def test_clients_of_one_site_share_its_samples_out() -> None:
    parts = [client(Place(part=part, parts=2)).dataset for part in range(2)]
    whole = data.token_dataset(config(), None)
    for index in range(3):
        for part in range(2):
            assert torch.equal(parts[part][index][0], whole[2 * index + part][0])
    assert len(parts[0]) + len(parts[1]) == len(whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "sentence"),
    [(Place(group=2), "there is no group 2: the plan has 2"), (Place(part=2, parts=2), "part 2 of 2 parts")],
)
def test_a_place_that_the_plan_does_not_have_is_one_sentence(place: Place, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        client(place)
