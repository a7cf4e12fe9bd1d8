"""The story in order: inputs, calibrations, proxies."""

from __future__ import annotations

import json

import pytest
from plan_for_tests import small_plan, small_shape

from stratadvisor import pipeline, scaling
from stratadvisor.errors import ModelError, UsageError
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.plan import SynchronizationPlan
from stratadvisor.schema.profile import Calibration, ClusterProfile, DeviceProfile, NodeProfile
from stratadvisor.schema.workload import ModelShape


def profile(name: str = "NVIDIA A100-SXM4-80GB", devices: int = 1, **more: object) -> ClusterProfile:
    found = tuple(DeviceProfile(index=i, kind="cuda", name=name) for i in range(devices))
    return ClusterProfile.model_validate({"nodes": (NodeProfile(hostname="a", devices=found),), **more})


def test_a_new_profile_of_the_same_devices_keeps_calibrations(tmp_path):
    path = tmp_path / "cluster.json"
    kept = Calibration(device="A100", strategy="ddp", time_ratio=1.5)
    pipeline.write_profile(path, profile(calibrations=(kept,)))
    assert pipeline.write_profile(path, profile()).calibrations == (kept,)
    assert pipeline.write_profile(path, profile("Tesla T4")).calibrations == ()


def test_the_newest_calibration_of_a_kind_replaces_the_older():
    old = Calibration(device="A100", strategy="ddp", time_ratio=1.5, model="m")
    other = Calibration(device="A100", strategy="fsdp2", time_ratio=1.1, model="m")
    new = Calibration(device="A100", strategy="ddp", time_ratio=1.2, model="m")
    assert pipeline.merged((old, other), [new]) == (other, new)


def test_calibrations_are_bounded():
    many = [Calibration(device=f"d{i}", strategy="ddp", time_ratio=1.0) for i in range(500)]
    assert len(pipeline.merged((), many)) == pipeline.MAX_CALIBRATIONS


def test_batch_in_tokens_is_rounded_to_sequences():
    workload = pipeline.make_workload(small_shape(), sequence_length=512, global_batch_tokens="4096")
    assert workload.global_batch_size == 4096 // 512


@pytest.mark.parametrize(("positions", "parameters", "length"), [(0, 10**7, 512), (0, 10**9, 2048), (256, 10**9, 256)])
def test_the_default_length_respects_size_and_positions(positions, parameters, length):
    shape = small_shape().model_copy(update={"num_parameters": parameters, "max_sequence_length": positions})
    assert pipeline.default_sequence_length(shape) == length


def test_learned_positions_bound_the_sequence():
    shape = small_shape().model_copy(update={"learned_positions": True, "max_sequence_length": 128})
    with pytest.raises(UsageError, match="128 learned positions"):
        pipeline.make_workload(shape, sequence_length=256)


def test_models_come_from_sizes_names_and_files(tmp_path):
    assert pipeline.resolve_model(model_size="7B", model=None).num_layers == 32
    assert pipeline.resolve_model(model_size=None, model="llama-3-8b").num_key_value_heads == 8
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (tmp_path, tmp_path / "config.json"):
        assert pipeline.resolve_model(model_size=None, model=str(given)).hidden_size == 64
    with pytest.raises(ModelError, match="llama-3-9b"):
        pipeline.resolve_model(model_size=None, model="llama-3-9b")


def test_an_unknown_strategy_is_refused_with_the_list():
    workload = pipeline.make_workload(small_shape(), sequence_length=64)
    with pytest.raises(UsageError, match="ddp"):
        pipeline.recommend(profile(devices=2), workload, strategy="magic")


def test_the_same_inputs_give_the_same_plan():
    workload = pipeline.make_workload(small_shape(), sequence_length=64)
    first = pipeline.recommend(profile(devices=2), workload).plan
    second = pipeline.recommend(profile(devices=2), workload).plan
    assert first.model_dump_json() == second.model_dump_json()


def test_a_plan_for_two_nodes_or_more_devices_does_not_fit_one_machine():
    one = small_plan(device_kind="cuda")
    here = tuple(DeviceProfile(index=i, kind="cuda", name="cpu") for i in range(2))
    assert scaling.fits_here(one, here)
    assert not scaling.fits_here(one, here[:1])
    assert not scaling.fits_here(one, ())


def test_layers_taken_away_take_their_parameters_with_them():
    shape = pipeline.resolve_model(model_size=None, model="llama-3-8b")
    ends = 2 * shape.vocab_size * shape.hidden_size
    half = scaling.with_layers(shape, 16)
    assert half.num_parameters == pytest.approx(ends + (shape.num_parameters - ends) / 2, rel=1e-6)


def test_a_model_is_halved_until_it_fits_and_the_words_say_so():
    plan = small_plan()
    local = profile("cpu", devices=2)
    shrunk = scaling.shrink(plan, local, lambda w: w.model.num_layers <= 1)
    assert shrunk.comparable
    assert shrunk.workload.model.num_layers == 1
    assert "1 of 2 layers" in shrunk.said


def test_other_hardware_gets_a_stand_in_that_is_not_comparable():
    shape = ModelShape.model_validate(small_shape().model_dump() | {"vocab_size": 128256})
    plan = small_plan(workload=small_plan().workload.model_copy(update={"model": shape}))
    shrunk = scaling.shrink(plan, profile("Tesla T4"), lambda w: True)
    assert not shrunk.comparable
    assert shrunk.workload.model.vocab_size == scaling.SMALL_VOCABULARY
    assert "stand-in" in shrunk.said


@pytest.mark.parametrize(
    ("mode", "devices", "expected"),
    [
        ("synchronous", 2, "ddp"),
        ("synchronous", 1, "single"),
        ("local_sgd", 2, "diloco"),
        ("asynchronous", 2, "async_sgd"),
    ],
)
def test_a_stand_in_synchronizes_as_the_plan_does(mode, devices, expected):
    plan = small_plan(
        strategy="megatron_3d",
        synchronization=SynchronizationPlan(mode=mode, sync_interval_steps=30 if mode == "local_sgd" else 1),
    )
    processors = tuple(
        DeviceProfile(
            index=i,
            kind="cpu",
            name="processor",
            unified_memory=True,
            memory_total_bytes=reported(6 * 2**30),
            memory_free_bytes=reported(6 * 2**30),
            matmul_flops_per_second={"fp32": measured(5e10)},
            memory_bandwidth_bytes_per_second=measured(8e9),
        )
        for i in range(devices)
    )
    node = NodeProfile(hostname="a", devices=processors, intra_node_bytes_per_second=measured(3e7))
    local = ClusterProfile(nodes=(node,))
    shrunk = scaling.shrink(plan, local, lambda w: True)
    if devices > 1:
        assert pipeline.recommend(local, shrunk.workload).plan.strategy == "diloco"  # what is fastest here
    strategies = (plan.strategy, *scaling.substitutes(plan))
    assert pipeline._scaled_down(local, shrunk.workload, strategies).plan.strategy == expected


def test_questions_after_the_family_are_about_the_nodes_that_will_run():
    from stratadvisor.derive import declared

    cluster = declared.parse_gpus("1x8xA100-80GB,1x8xV100-32GB", inter_node="1Gb/s")
    shape = pipeline.resolve_model(model_size="7B", model=None)
    plan = pipeline.recommend(cluster, pipeline.make_workload(shape)).plan
    # gradients of 7B in 16 bit are 14 GB: over 1 Gb/s far more than the V100s could add
    assert [g.device_name for g in plan.groups] == ["A100-80GB"]
    precision = next(d for d in plan.decisions if "precision" in d.sets)
    # V100 has no bf16, A100 has: the answer must be about A100
    assert precision.sets["precision"] == "bf16"
    assert plan.precision == "bf16"
    assert any("left out" in w for w in plan.warnings)
    assert any(d.question == "node_speeds" for d in plan.decisions)
