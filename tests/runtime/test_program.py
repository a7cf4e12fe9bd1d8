from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime_bundle import configuration, group, losses, make_config

from stratadvisor.runtime import data, model
from stratadvisor.runtime.program import main, parse

ALONE = group(devices_per_node=1)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "STRATADVISOR_STEPS", "STRATADVISOR_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_config(tmp_path / "bundle", engine="single", groups=[ALONE])


def run(bundle: Path, *arguments: str) -> int:
    return main(model.build, data.token_dataset, bundle, arguments)


def test_options_and_environment_say_how_long_and_where(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(bundle, "--steps", "2", "--run-dir", str(tmp_path / "chosen")) == 0
    assert len(losses(tmp_path, run="chosen")) == 2
    monkeypatch.setenv("STRATADVISOR_STEPS", "3")
    monkeypatch.setenv("STRATADVISOR_RUN_DIR", str(tmp_path / "from_environment"))
    assert run(bundle, "--steps", "2") == 0
    assert len(losses(tmp_path, run="from_environment")) == 3


def test_resuming_a_finished_run_does_nothing_more(bundle: Path) -> None:
    assert run(bundle, "--steps", "2") == 0
    assert run(bundle, "--steps", "2", "--resume") == 0
    assert len(losses(bundle)) == 2


def test_a_short_validation_run_shortens_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_config(tmp_path / "bundle", engine="single", groups=[ALONE], warmup_steps=1000, learning_rate=1.0)
    monkeypatch.setenv("STRATADVISOR_STEPS", "5")
    assert run(bundle) == 0
    lines = [json.loads(line) for line in (bundle / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if line["event"] == "step"]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0], rel=1e-2)  # one step up, then the top of the cosine


def test_a_checkpoint_of_another_strategy_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bundle, "--steps", "1") == 0
    (bundle / "train_config.json").write_text(
        json.dumps(configuration(engine="single", strategy="other", groups=[ALONE]))
    )
    assert run(bundle, "--steps", "2", "--resume") == 2
    assert "was written by the strategy single, not other" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_a_wrong_number_of_steps_is_refused(bundle: Path, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        run(bundle, "--steps", steps)
    assert caught.value.code == 2
    monkeypatch.setenv("STRATADVISOR_STEPS", steps)
    with pytest.raises(SystemExit):
        run(bundle)


def test_the_deepspeed_launcher_gives_the_local_rank_as_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    _, chosen = parse(["--local_rank=1", "--steps", "4"], Path())
    assert chosen.steps == 4


def test_problems_are_one_sentence(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(*arguments: str) -> str:
        assert run(bundle, *arguments) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "none.txt cannot be read: No such file" in error("--steps", "1", "--data", str(tmp_path / "none.txt"))
    assert "run directory" in error("--run-dir", str(bundle / "train_config.json"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "engine single is for one process, but 2 were started" in error("--steps", "1")
    monkeypatch.setenv("WORLD_SIZE", "two")
    assert "WORLD_SIZE must be a whole number, not 'two'" in error("--steps", "1")
    monkeypatch.delenv("WORLD_SIZE")
    (bundle / "train_config.json").write_text(json.dumps(configuration(engine="single", device_kind="xpu")))
    assert "device_kind 'xpu' is not supported" in error("--steps", "1")
    (bundle / "train_config.json").write_text('{"strategy": "single"}')
    assert "train_config.json: the document lacks the key 'engine'" in error()
