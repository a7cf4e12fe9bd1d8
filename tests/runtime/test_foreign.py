from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from runtime_bundle import group, losses, make_config

from stratadvisor.runtime import data, foreign, model
from stratadvisor.runtime.config import ConfigError
from stratadvisor.runtime.program import main


def test_class_scores_give_cross_entropy_summed_over_items() -> None:
    class Even(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(inputs), 10)

    loss = foreign.ForeignModule(Even())(torch.zeros(4, 2), torch.tensor([1, 2, 3, 4]))
    assert math.isclose(loss.item(), 4 * math.log(10), rel_tol=1e-5)


def test_a_number_is_the_mean_loss_and_anything_else_its_mean_square() -> None:
    class Constant(torch.nn.Module):
        def __init__(self, value: torch.Tensor) -> None:
            super().__init__()
            self.value = value

        def forward(self, _: torch.Tensor) -> dict[str, object]:
            return {"name": "x", "out": self.value}

    labels = torch.zeros(5, dtype=torch.int64)
    assert foreign.ForeignModule(Constant(torch.tensor(3.0)))(labels, labels).item() == 15.0
    assert foreign.ForeignModule(Constant(torch.full((5, 1), 2.0)))(labels, labels).item() == 5 * 4.0


def test_items_have_the_shape_of_the_example_or_of_the_first_layer() -> None:
    assert foreign.example_items("runtime_factories:with_example", 0)[3][0].shape == (4, 5)
    items = foreign.example_items("runtime_factories:classifier", 0)
    assert items[3][0].shape == (12,)
    assert torch.equal(items[3][0], items[3][0])
    assert [int(items[i][1]) for i in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("runtime_factories:two_inputs", "is not one tensor"),
        ("runtime_factories:none", "cannot be imported"),
        ("no_such_package:make", "cannot be imported"),
        ("math:pi", "is not callable"),
        ("runtime_factories:torch.Size", "cannot be imported"),
        ("builtins:dict", "returned a dict, not a torch module"),
    ],
)
def test_what_is_wrong_with_a_factory_is_one_sentence(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        foreign.example_items(target, 0)


def test_a_module_of_a_factory_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    shape = {"name": "mine", "family": "module", "factory": "runtime_factories:classifier"}
    alone = group(devices_per_node=1, micro_batch_size=8, batch_per_device=16)
    bundle = make_config(tmp_path / "bundle", engine="single", groups=[alone], model=shape, learning_rate=0.03)
    assert main(model.build, data.token_dataset, bundle, ["--steps", "40"]) == 0
    found = losses(bundle)
    assert found[0] == pytest.approx(math.log(3), abs=0.5)  # three classes, untrained
    assert found[-1] < found[0] - 0.3
