"""ds_config.json against DeepSpeed's own parser, and against the keys that it no longer (or never) had."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.schema.plan import MemoryPlan, SynchronizationPlan

WRONG_KEYS = (
    # never existed, or refused by DeepSpeed 0.19: strategies shown on the web
    "compression_training",
    "max_grad_norm",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_params",
    "cpu_offload_use_pin_memory",
    "stage3_gather_fp16_weights_on_model_save",
    "mics_shard_size",
    "mics_hierarchical_params_gather",
    "zeropp_loco_param",
    "elasticity",
    "sparse_gradients",
    "nebula",
    "gradient_compression",
    "async",
    "communication",
    "hierarchical_allreduce",
    "amp",
    "quantize_training",
    "eigenvalue",
    "sparse_attention",
    "graph_harvesting",
    "curriculum_learning",
    "progressive_layer_drop",
    "activation_checkpointing",  # does nothing unless the model calls DeepSpeed's own function; train.py does it
    "gradient_checkpointing",
    "bfloat16",
)


def plans() -> dict[str, object]:
    """Return plans of every stage, precision, offload and device kind."""
    cases = {name: plan for name, plan in plan_examples.examples().items() if plan.target == "deepspeed"}
    for stage, strategy in ((1, "zero1"), (2, "zero2"), (3, "zero3")):
        for kind, precision in (("cpu", "fp32"), ("cpu", "bf16"), ("cuda", "bf16"), ("cuda", "fp16"), ("rocm", "bf16")):
            for offload in ("none", "cpu"):
                cases[f"{strategy}-{kind}-{precision}-{offload}"] = make_plan(
                    strategy,
                    "deepspeed",
                    (group(nodes=2, devices=3, micro=2, accumulation=4),),
                    device_kind=kind,
                    precision=precision,
                    memory=MemoryPlan(zero_stage=stage, optimizer_offload=offload),
                )
    cases["nvme"] = make_plan(
        "zero_offload",
        "deepspeed",
        device_kind="cuda",
        precision="bf16",
        memory=MemoryPlan(zero_stage=3, optimizer_offload="nvme", parameter_offload="nvme"),
        settings={"nvme_path": "/scratch"},
    )
    cases["pure"] = make_plan(
        "zero3", "deepspeed", device_kind="cuda", precision="bf16_pure", memory=MemoryPlan(zero_stage=3)
    )
    cases["compressed"] = make_plan(
        "zero2",
        "deepspeed",
        memory=MemoryPlan(zero_stage=2),
        synchronization=SynchronizationPlan(compression="bf16"),
    )
    cases["stage0"] = make_plan("zero1", "deepspeed", memory=MemoryPlan(zero_stage=0))
    cases["unequal"] = make_plan(
        "zero1", "deepspeed", (group("a", micro=4), group("b", micro=2)), memory=MemoryPlan(zero_stage=1)
    )
    for optimizer in ("sgd", "adafactor", "adamw8bit", "muon"):
        plan = make_plan("zero1", "deepspeed", memory=MemoryPlan(zero_stage=1, optimizer_offload="cpu"))
        workload = plan.workload.model_copy(update={"optimizer": optimizer})
        cases[optimizer] = plan.model_copy(update={"workload": workload})
    return cases


@cache
def emitted(name: str) -> dict[str, object]:
    for file in render_bundle(PLANS[name], plan_examples.profile()):
        if file.path == "ds_config.json":
            return json.loads(file.content)
    raise AssertionError("no ds_config.json")


def keys(value: object) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value) | {key for inner in value.values() for key in keys(inner)}


PLANS = plans()


@pytest.mark.parametrize("name", PLANS)
def test_no_key_is_one_that_deepspeed_has_not(name):
    config = emitted(name)
    assert not keys(config) & set(WRONG_KEYS)
    assert "auto" not in json.dumps(config)


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_what_the_file_says(name):
    plan, config = PLANS[name], emitted(name)
    zero = config["zero_optimization"]
    assert zero["stage"] == plan.memory.zero_stage
    assert config["gradient_clipping"] == 1.0
    assert config.get("bf16", {}).get("enabled", False) == (plan.precision in ("bf16", "bf16_pure"))
    assert config.get("fp16", {}).get("enabled", False) == (plan.precision == "fp16")
    for key, wanted in (
        ("offload_optimizer", plan.memory.optimizer_offload),
        ("offload_param", plan.memory.parameter_offload),
    ):
        offload = zero.get(key, {"device": "none"})
        assert offload["device"] == wanted
        if wanted != "none":
            assert offload["pin_memory"] == (plan.device_kind != "cpu")
    if "train_batch_size" in config:
        assert config["train_batch_size"] == plan.batch.global_batch_size
    parameters = config.get("optimizer", {}).get("params", {})
    assert ("optimizer" in config) == (plan.workload.optimizer == "adamw")
    if plan.device_kind == "cpu" and parameters:
        assert parameters["torch_adam"] is True  # DeepSpeed's own Adam would need a compiler


def test_unequal_shares_leave_out_the_total_which_could_only_be_wrong():
    assert "train_batch_size" not in emitted("unequal")
    assert all("train_batch_size" in emitted(name) for name in PLANS if name != "unequal")


PARSE = """
import json, logging, sys
import deepspeed, torch
from deepspeed.runtime import config, constants
from deepspeed.runtime import precision_config
from deepspeed.runtime.zero import config as zero_config

logging.disable(logging.CRITICAL)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False, verbose=False)


class World:
    def __init__(self, size):
        self.size = size

    def get_data_parallel_world_size(self):
        return self.size


known = {
    value
    for module in (config, constants, precision_config, zero_config)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}
answers = {}
for name, (world, content) in json.load(sys.stdin).items():
    parsed = config.DeepSpeedConfig(content, mpu=World(world))
    zero = parsed.zero_config
    answers[name] = {
        "total": parsed.train_batch_size,
        "micro": parsed.train_micro_batch_size_per_gpu,
        "accumulation": parsed.gradient_accumulation_steps,
        "clipping": parsed.gradient_clipping,
        "stage": int(zero.stage),
        "bf16": parsed.bfloat16_config.enabled,
        "fp16": parsed.float16_config.enabled,
        "offload": "none" if zero.offload_optimizer is None else str(zero.offload_optimizer.device).split(".")[-1],
        "bucket": zero.reduce_bucket_size,
        "unknown": sorted(set(content) - known),
    }
try:
    zero_config.DeepSpeedZeroConfig(stage=2, reduce_bucket_sise=1)
    strict = False
except Exception:
    strict = True
print("ANSWERS" + json.dumps({"strict": strict, "answers": answers}))
"""


@pytest.mark.process
def test_deepspeeds_own_parser_accepts_every_file_and_proves_the_batch_identity():
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    asked = {name: (plan.parallelism.world_size, emitted(name)) for name, plan in PLANS.items()}
    result = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(asked),
        env=os.environ | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    told = json.loads(result.stdout[result.stdout.index("ANSWERS") + len("ANSWERS") :])
    assert told["strict"], "DeepSpeed's ZeRO section no longer refuses unknown keys: this test proves less"
    for name, plan in PLANS.items():
        answer = told["answers"][name]
        world = plan.parallelism.world_size
        assert answer["unknown"] == [], name
        assert answer["total"] == answer["micro"] * answer["accumulation"] * world, name
        if name != "unequal":
            assert answer["total"] == plan.batch.global_batch_size, name
        assert (answer["micro"], answer["accumulation"]) == (
            plan.batch.micro_batch_size,
            plan.batch.gradient_accumulation_steps,
        ), name
        assert answer["stage"] == plan.memory.zero_stage, name
        assert answer["clipping"] == 1.0, name
        assert answer["bf16"] == (plan.precision in ("bf16", "bf16_pure")), name
        assert answer["fp16"] == (plan.precision == "fp16"), name
        assert answer["offload"] == plan.memory.optimizer_offload, name
