"""Cases O-40 to O-44: number formats, kernels, and builds of torch."""

from __future__ import annotations

import json

import pytest
from case_support import ADAM, GIB, card, cluster_of, declare, files_of, needs, node, plan_for, shape_of, stays
from plan_for_tests import small_plan

from stratadvisor.catalog import devices
from stratadvisor.catalog.hugging_face import shape_from_config
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.errors import ModelError
from stratadvisor.lint.run import check_file
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.runtime.config import TrainingError
from stratadvisor.runtime.distributed import check_kernels
from stratadvisor.validate.classify import classify
from stratadvisor.validate.launch import Ended

V100 = 'device = { memory = "32508MiB" }'


def test_o40(tmp_path) -> None:
    """13B on V100: fp16 with a dynamic loss scale, no bf16, no tf32, no kernel for Ampere; it fits, tightly."""
    assert pytest.approx(24.2, abs=0.1) == ADAM * 13.0e9 / 8 / GIB
    where = declare("8xV100-32GB-SXM", more=V100)
    plan = plan_for(where, "13B", sequence_length=2048, strategy="zero3")
    assert plan.precision == "fp16"
    assert stays(plan)
    assert plan.memory.zero_stage == 3
    assert plan.batch.micro_batch_size == 1
    assert any("marginal" in w for w in plan.warnings)
    written = files_of(plan, where)
    config = json.loads(written["ds_config.json"])
    assert config["fp16"]["enabled"] is True
    assert config["fp16"]["loss_scale"] == 0  # dynamic
    assert "bf16" not in config
    assert not any("allow_tf32 = True" in text or "flash_attention_2" in text for text in written.values())
    assert plan_for(where, "13B", sequence_length=2048).precision == "fp16"  # whatever the strategy
    recipe = tmp_path / "arguments.json"
    recipe.write_text(json.dumps({"output_dir": "o", "bf16": True, "tf32": True, "per_device_train_batch_size": 1}))
    codes = {f.code for f in check_file(recipe, kind="transformers", cluster=planning_cluster(where)).findings}
    assert {"HW101", "HW103"} <= codes  # the recipe for the A100, before it is started


def test_o41() -> None:
    """Turing has neither bf16 nor FlashAttention-2: fp16 and torch's own attention, which saves memory there too."""
    spec = devices.lookup("Quadro RTX 8000")
    assert spec.compute_capability < (8, 0)
    where = declare("1xQuadro RTX 8000", host_gib=128)
    plan = plan_for(where, "3B", method="lora")
    assert plan.precision == "fp16"
    assert stays(plan)
    written = files_of(plan, where)
    assert "scaled_dot_product_attention" in written["stratadvisor_runtime/model.py"]
    assert not any("flash_attn" in text or "flash_attention_2" in text for text in written.values())
    lora = {"method": "lora", "sequence_length": 4096, "precision": "fp16"}
    flash, eager = (needs("3B", **lora, flash_attention=flag).terms_bytes["activations"] for flag in (True, False))
    shape = shape_of("3B")
    assert eager - flash > 0.9 * 2 * shape.num_attention_heads * 4096**2 * shape.num_layers  # the scores, at least once


def test_o42(tmp_path) -> None:
    """Pascal: fp16 at 1/64 of its rate and refused by DeepSpeed, so fp32: 4 + 4 + 8 bytes all the same."""
    kind = 'device = { name = "GTX 1080 Ti", memory = "11GiB", fp32 = "11.3TFLOP/s" }'
    where = declare("4x1080 Ti", host_gib=64, more=kind)
    plan = plan_for(where, "350M")
    assert (plan.strategy, plan.precision) == ("ddp", "fp32")
    zero = plan_for(where, "350M", strategy="zero2")
    config = json.loads(files_of(zero, where)["ds_config.json"])
    assert not config.get("fp16", {}).get("enabled")
    assert not config.get("bf16", {}).get("enabled")
    old = card("NVIDIA GeForce GTX 1080 Ti", 0, 11264, compute_capability=(6, 1))
    recipe = tmp_path / "ds_config.json"
    recipe.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": True}}))
    pascal = planning_cluster(cluster_of(node("n", [old])))
    assert "HW102" in {f.code for f in check_file(recipe, cluster=pascal).findings}
    said = " ".join(v.message for v in host_verdicts(node("n", [old], versions={"cuda": "13.0"})))
    assert "no kernels for compute capability 6.1 any more" in said


def test_o43() -> None:
    """Models trained in bf16 overflow in fp16: bf16 where there is, fp32 elsewhere, fp16 never by default."""
    assert 66246 > 65504  # the traced activation, and what fp16 holds
    with pytest.raises(ModelError, match="encoder and a decoder") as refused:
        shape_from_config({"model_type": "t5", "d_model": 1024, "num_layers": 24}, "t5-large")
    assert "--precision bf16, or fp32" in refused.value.hint
    asked = plan_for(declare("1xV100-32GB-SXM", more=V100), "770M", precision="fp32")
    assert asked.precision == "fp32"
    text = {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "model_type": "gemma3_text"}
    gemma = shape_from_config(text, "gemma-3-1b")
    old = plan_for(declare("8xV100-32GB-SXM", more=V100), gemma)
    assert old.precision == "fp32"
    assert any("overflows in fp16" in w for w in old.warnings)
    half, whole = (needs(gemma, precision=p, engine="fsdp2").terms_bytes["activations"] for p in ("fp16", "fp32"))
    assert whole > half  # the fit is checked with what fp32 keeps
    assert plan_for(declare("8xA100-80GB-SXM"), gemma).precision == "bf16"


def test_o44() -> None:
    """RTX 5090 and a wheel for CUDA 12.4: found before a launch, and not called memory or NCCL after one."""
    host = node("n", [card("NVIDIA GeForce RTX 5090", 0, 32607)], versions={"cuda": "12.4", "torch": "2.6.0"})
    assert host.devices[0].compute_capability == (12, 0)
    (told,) = [v for v in host_verdicts(host) if v.level == "problem"]
    assert "no kernels for compute capability 12.0" in told.message
    assert "12.8" in told.message
    built = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
    with pytest.raises(TrainingError, match=r"capability 12\.0"):
        check_kernels((12, 0), built)
    check_kernels((12, 0), [*built, "sm_120"])
    check_kernels((8, 9), built)  # runs code for 8.6
    check_kernels((12, 0), ["compute_90"])  # compiled at run time
    log = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    ended = Ended(how="exit", exit_code=1, wall_seconds=5, peak_tree_bytes=0, cgroup_oom_kills=0)
    assert classify(ended, log, small_plan()).kind == "version_mismatch"
    assert plan_for(cluster_of(host), "350M").precision == "bf16"
