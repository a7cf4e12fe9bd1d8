"""Adaptive control in real ranks: samples leave a slow rank, regimes change and change back, training stays right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runtime_adapting import SCRIPT
from runtime_bundle import LAUNCHER, events, finish, group, losses, make_config

from stratadvisor.runtime import data, model
from stratadvisor.runtime.program import main

pytestmark = pytest.mark.process
PROGRAM = Path(__file__).resolve().parents[1] / "runtime_adapting.py"
ROUNDING = 1e-4
"""Losses are near 5; fp32 sums in another order differ by far less."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapting")
    pair = group(micro_batch_size=2, gradient_accumulation_steps=2, batch_per_device=4)
    # data that counts its tokens in every step is in the script; all samples of a step are the same under any shares
    slowed = make_config(folder / "slowed", engine="adaptive", groups=[pair])
    scripted = make_config(folder / "scripted", engine="adaptive", groups=[pair], checkpoint_interval_steps=1000)
    output = finish([*LAUNCHER, str(PROGRAM), str(slowed), str(scripted)])
    assert "change after step" in output
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of one process with the whole batch of eight sequences."""
    alone = group(devices_per_node=1, micro_batch_size=8, gradient_accumulation_steps=1, batch_per_device=8)
    bundle = make_config(tmp_path_factory.mktemp("alone") / "bundle", engine="single", groups=[alone])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
            patch.delenv(name, raising=False)
        assert main(model.build, data.token_dataset, bundle, ["--steps", "40"]) == 0
    return losses(bundle)


def changes(bundle: Path) -> list[dict[str, Any]]:
    return events(bundle, "change")


def test_samples_leave_a_slow_rank_and_the_gradient_stays_the_mean_over_all(runs: Path, reference: list[float]) -> None:
    made = changes(runs / "slowed")
    assert made
    assert made[0]["kind"] == "balance:1"
    assert "rank 1 needs" in made[0]["reason"]
    assert "shares 4/4 ->" in made[0]["reason"]
    first, second = map(int, made[0]["reason"].rpartition(" ")[2].split("/"))
    assert first + second == 8
    assert second < first
    steps = events(runs / "slowed")
    assert [s["samples"] for s in steps] == [8] * 40
    assert [s["step"] for s in steps] == list(range(1, 41))
    assert losses(runs / "slowed") == pytest.approx(reference, abs=ROUNDING)


def test_regimes_change_and_change_back(runs: Path) -> None:
    steps = events(runs / "scripted")
    assert [c["reason"] for c in changes(runs / "scripted")] == [f"window {w}" for w, _ in SCRIPT]
    assert [s["step"] for s in steps] == list(range(1, len(steps) + 1))
    # the end goes by samples: 60 steps of the plan's 8 sequences; the last changes doubled the batch
    sizes = [s["samples"] for s in steps]
    assert sizes == sorted(sizes)
    assert set(sizes) == {8, 16}
    assert 60 * 8 <= sum(sizes) < 60 * 8 + 16
    rates = {s["samples"]: s["learning_rate"] for s in steps}
    assert rates[16] > 1.3 * rates[8]  # root of two, less what the schedule takes
    told = [s["loss"] for s in steps]
    assert sum(told[-5:]) < sum(told[:5])


def test_back_in_step_all_ranks_are_equal_again(runs: Path) -> None:
    (saved,) = (runs / "scripted" / "run" / "checkpoints").glob("step-*")
    states = [torch.load(saved / f"rank-{rank}.pt", weights_only=True)["optimizer"]["state"] for rank in range(2)]
    assert states[0].keys() == states[1].keys()
    for key, state in states[0].items():
        for name, value in state.items():
            torch.testing.assert_close(value, states[1][key][name], rtol=1e-5, atol=1e-8)
