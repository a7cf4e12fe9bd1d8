"""The main job on real ranks: plan, write, start, compare. CPU and gloo; nothing here has run on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratadvisor import pipeline
from stratadvisor.cli import run
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DeviceProfile,
    HostMemoryProfile,
    NodeProfile,
)
from stratadvisor.schema.workload import ModelShape
from stratadvisor.store import read_plan, read_profile, write_document
from stratadvisor.validate import calibration

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
STEPS = 20
LIMITS = ["--time-limit", "1500", "--stall-limit", "900"]


def two_cpu_ranks() -> ClusterProfile:
    """A profile of two CPU ranks whose figures are roughly any machine's; they are not what is tested."""
    device = {
        "kind": "cpu",
        "name": "processor",
        "memory_total_bytes": reported(6 * 2**30),
        "memory_free_bytes": reported(6 * 2**30),
        "unified_memory": True,
        "matmul_flops_per_second": {"fp32": measured(5e10)},
        "memory_bandwidth_bytes_per_second": measured(8e9),
    }
    node = NodeProfile(
        hostname="localhost",
        devices=tuple(DeviceProfile.model_validate({**device, "index": i}) for i in range(2)),
        cpu=CpuProfile(usable_cores=reported(2)),
        host_memory=HostMemoryProfile(
            total_bytes=reported(16 * 2**30),
            available_bytes=reported(12 * 2**30),
            shared_memory_free_bytes=reported(2**30),
        ),
        intra_node_bytes_per_second=measured(1e9),
    )
    return ClusterProfile(nodes=(node,))


def tiny() -> ModelShape:
    """Two layers of 64 with a byte vocabulary: attention 4 x 64 x 64, gated MLP 3 x 64 x 192, norms 2 x 64 a layer."""
    parameters = 256 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + 64
    return ModelShape(
        name="tiny",
        source="made for this test",
        num_parameters=parameters,
        num_active_parameters=parameters,
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        ffn_hidden_size=192,
        vocab_size=256,
        tied_embeddings=True,
        max_sequence_length=64,
    )


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Real text of about 60 kB: the licence and the documents of this repository."""
    path = tmp_path_factory.mktemp("data") / "text.txt"
    parts = [ROOT / "LICENSE", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    path.write_text("\n".join(p.read_text(encoding="utf-8") for p in parts) * 2, encoding="utf-8")
    return path


def planned(tmp_path: Path, strategy: str, **options: object) -> Path:
    workload = pipeline.make_workload(
        tiny(), sequence_length=64, global_batch_size=8, precision="fp32", total_tokens="10M", **options
    )
    result = pipeline.recommend(two_cpu_ranks(), workload, strategy=strategy)
    assert result.plan.strategy == strategy
    assert result.plan.parallelism.world_size == 2
    directory = tmp_path / strategy
    pipeline.write_bundle(result, directory)
    return directory


def run_and_read(directory: Path, text: Path, capsys, steps: int = STEPS) -> dict:
    code = run(["run-config", str(directory), "--steps", str(steps), "--data", str(text), "--json", *LIMITS])
    captured = capsys.readouterr()
    log = directory / "validation" / "output.log"
    assert code == 0, captured.err + (log.read_text()[-4000:] if log.exists() else "")
    outcome = json.loads(captured.out)
    return outcome["results"][0]


def losses(directory: Path) -> list[float]:
    events = [json.loads(line) for line in (directory / "validation" / "metrics.jsonl").read_text().splitlines()]
    return [e["loss"] for e in events if e["event"] == "step"]


def test_ddp_and_its_zero_twins_agree_in_loss_and_fall_on_real_text(tmp_path, text, capsys):
    curves = {}
    for strategy in ("ddp", "zero1", "zero2", "zero3"):
        directory = planned(tmp_path, strategy)
        result = run_and_read(directory, text, capsys)
        assert result["outcome"] == "completed"
        assert result["steps_done"] == STEPS
        assert result["loss_falling"] is True
        curves[strategy] = losses(directory)
    for strategy, curve in curves.items():
        # one seed, one data order: the runs differ by the order of sums in fp32 only
        assert curve == pytest.approx(curves["ddp"], rel=2e-3), strategy


@pytest.mark.parametrize("strategy", ["fsdp2", "diloco", "async_sgd"])
def test_other_families_run_to_completion_and_learn(strategy, tmp_path, text, capsys):
    directory = planned(tmp_path, strategy)
    result = run_and_read(directory, text, capsys, steps=40 if strategy != "fsdp2" else STEPS)
    assert result["outcome"] == "completed"
    assert result["loss_falling"] is True
    rows = {row["quantity"]: row for row in result["comparisons"]}
    assert rows["step time"]["measured"] > 0
    assert rows["peak memory per device"]["measured"] > 1e7


def test_a_validation_run_corrects_the_next_prediction(tmp_path, text, capsys, monkeypatch):
    monkeypatch.setattr(calibration, "MOST_SPREAD", float("inf"))  # how quiet this machine is is not the question here
    cluster = tmp_path / "cluster.json"
    write_document(cluster, two_cpu_ranks())
    bundle = tmp_path / "bundle"
    asked = ["recommend", "--model-size", "1M", "--cluster", str(cluster), "--output", str(bundle)]
    asked += ["--strategy", "ddp", "--seq-len", "64", "--global-batch-size", "8", "--force"]
    assert run(asked) == 0
    before = read_plan(bundle / "plan.json").predicted
    capsys.readouterr()
    result = run_and_read(bundle, text, capsys, steps=6)
    ratio = next(row["ratio"] for row in result["comparisons"] if row["quantity"] == "step time")
    kept = read_profile(cluster).calibrations
    assert [c.strategy for c in kept] == ["ddp"]
    assert kept[0].time_ratio == pytest.approx(ratio)
    assert run(asked) == 0
    after = read_plan(bundle / "plan.json").predicted
    assert not before.calibrated
    assert after.calibrated
    assert after.step_seconds.likely == pytest.approx(before.step_seconds.likely * ratio, rel=0.02)


def test_a_plan_for_other_hardware_is_validated_as_a_stand_in_and_says_so(tmp_path, capsys):
    bundle = tmp_path / "bundle"
    assert run(["recommend", "--model-size", "1B", "--gpus", "8xA100-80GB", "--output", str(bundle)]) == 0
    capsys.readouterr()
    code = run(["run-config", str(bundle), "--steps", "4", "--json", *LIMITS])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    result = json.loads(captured.out)["results"][0]
    assert result["outcome"] == "completed"
    assert "stand-in" in result["proxy"]
    assert read_profile(bundle / "cluster.json").calibrations == ()


def test_an_edited_bundle_is_not_run_unless_told(tmp_path, capsys):
    directory = planned(tmp_path, "ddp")
    with (directory / "train.py").open("a") as stream:
        stream.write("\n# my change\n")
    code = run(["run-config", str(directory), "--steps", "4"])
    assert code == 10
    assert "train.py" in capsys.readouterr().err


def test_a_bundle_that_lacks_a_package_says_which(tmp_path, capsys):
    directory = planned(tmp_path, "ddp")
    train = directory / "train.py"
    train.write_text("import a_package_that_nobody_has\n")
    code = run(["run-config", str(directory), "--steps", "4", "--accept-drift", *LIMITS])
    captured = capsys.readouterr()
    assert code == 8
    assert "a_package_that_nobody_has" in captured.err
    assert "pip install" in captured.err
