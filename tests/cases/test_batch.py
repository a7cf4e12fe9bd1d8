"""Cases O-45 to O-49: batches that multiply, divide and fit."""

from __future__ import annotations

import json

import pytest
from case_support import ADAM, MIB, declare, files_of, needs, plan_for, shape_of, together

from stratadvisor.costs.buffers import zero_bucket_elements
from stratadvisor.lint.run import check_file
from stratadvisor.strategies.worth import SIMPLICITY_GAIN

A100 = "8xA100-80GB-SXM"


def codes(path, **options) -> set[str]:
    return {f.code for f in check_file(path, **options).findings}


def test_o45(tmp_path) -> None:
    """4 x 8 x 8 = 256: what is written multiplies, and what does not is found."""
    where = declare(A100)
    plan = plan_for(where, "1B", strategy="zero2", global_batch_size=256)
    config = json.loads(files_of(plan, where)["ds_config.json"])
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == micro * steps * 8 == 256
    file = tmp_path / "ds_config.json"
    triple = {"train_batch_size": 4 * 8 * 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    file.write_text(json.dumps(triple | {"gradient_clipping": 1.0}))
    assert "DS201" not in codes(file, world_size=8)
    assert "DS201" in codes(file, world_size=1)  # what DeepSpeed sees before the process group exists
    beside = files_of(plan, where, beside=("huggingface",))
    arguments = json.loads(next(t for p, t in beside.items() if p.endswith("training_arguments.json")))
    assert arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"] * 8 == 256


def test_o46(tmp_path) -> None:
    """4 sequences for 8 devices: said, fewer devices taken, 0 never written."""
    plan = plan_for(declare(A100), "1B", global_batch_size=4)
    assert plan.parallelism.world_size // together(plan) <= 4
    assert all(g.batch_per_device >= 1 and g.micro_batch_size >= 1 for g in plan.groups)
    if plan.parallelism.world_size < 8:
        said = " ".join((*plan.warnings, *plan.assumptions))
        assert "a batch of 8 would use all" in said or "a global batch of 8 uses all" in said
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"train_batch_size": 4, "gradient_accumulation_steps": 1}))
    (found,) = [f for f in check_file(file, world_size=8).findings if f.code == "DS203"]
    assert "the share of a rank becomes 0" in found.message


def test_o47(tmp_path) -> None:
    """ "auto" is for the Trainer: none in our raw file, numbers in its buckets, an error in anybody else's."""
    where = declare(A100)
    for strategy in ("zero2", "zero3"):
        written = files_of(plan_for(where, "7B", strategy=strategy), where)["ds_config.json"]
        assert '"auto"' not in written
        assert isinstance(json.loads(written)["zero_optimization"]["reduce_bucket_size"], int)
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}))
    assert "DS213" in codes(file, loader="none")
    assert not codes(file, loader="transformers")


def test_o48(tmp_path) -> None:
    """Pipelines keep gradients over micro-batches, stage 2 scatters them: refused in a file, never in a plan."""
    file = tmp_path / "ds_config.json"
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "pipeline": {"stages": 2}}
    for stage, wrong in ((1, False), (2, True), (3, True)):
        file.write_text(json.dumps(config | {"zero_optimization": {"stage": stage}}))
        assert ("DS409" in codes(file, loader="none")) is wrong
    for model in ("7B", "30B", "70B"):
        where = declare(A100, host_gib=2000, nodes=2, network="200Gb/s")
        plan = plan_for(where, model)
        assert plan.parallelism.pipeline_parallel_degree == 1 or plan.memory.zero_stage <= 1


def test_o49(tmp_path) -> None:
    """110M on T4s: 1.8 GB of states need no dividing, and default buckets of 5e8 would cost 3 GB."""
    small = shape_of("110M").num_parameters
    card_bytes = 15109 * MIB
    assert ADAM * small < 0.15 * card_bytes
    default = (2 + 1) * 5e8 * 2  # two to reduce where that overlaps, one to gather, 16 bit
    assert default / card_bytes == pytest.approx(0.19, abs=0.01)
    kind = 'device = { memory = "15109MiB" }'
    assert plan_for(declare("4xT4", host_gib=64, more=kind), "110M").strategy == "ddp"
    for network in ("10Gb/s", "25Gb/s", "100Gb/s"):
        two = declare("2xT4", host_gib=64, nodes=2, network=network, more=kind)
        plan = plan_for(two, "110M")
        assert plan.strategy == "ddp"
        compared = {a.strategy: a.relative_to_choice for a in plan.alternatives if a.relative_to_choice is not None}
        # what local steps would gain is said, and too little for an update that is no longer exact
        assert all(compared[name] > 1 - SIMPLICITY_GAIN for name in ("diloco", "hierarchical", "zero2", "zero3"))
    forced = plan_for(two, "110M", strategy="zero2")
    written = json.loads(files_of(forced, two)["ds_config.json"])["zero_optimization"]
    assert written["reduce_bucket_size"] <= 5e7
    assert written["allgather_bucket_size"] <= 5e7
    stage2 = needs("110M", engine="deepspeed", sharding="gradients", precision="fp16", data_parallel_shard_degree=4)
    assert zero_bucket_elements(small) <= 5e7
    assert "buffers" in stage2.terms_bytes  # the fit check has them
    file = tmp_path / "ds_config.json"
    file.write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": 39,
                "fp16": {"enabled": True},
                "zero_optimization": {"stage": 2, "overlap_comm": True},
            }
        )
    )
    from stratadvisor.derive.cluster import planning_cluster

    (found,) = [f for f in check_file(file, cluster=planning_cluster(two)).findings if f.code == "HW104"]
    assert "2.79 GiB" in found.message  # 3 GB
