"""No finding on what is right: our own files, and the examples that frameworks ship or document."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.bundle import render_bundle
from stratadvisor.lint.run import check_file
from stratadvisor.schema.plan import MemoryPlan

OURS = {name: plan for name, plan in plan_examples.examples().items() if plan.target == "deepspeed"} | {
    f"{strategy}-{kind}-{precision}-{offload}": make_plan(
        strategy,
        "deepspeed",
        (group(nodes=2, devices=3, micro=2, accumulation=4),),
        device_kind=kind,
        precision=precision,
        memory=MemoryPlan(zero_stage=stage, optimizer_offload=offload),
    )
    for stage, strategy in ((1, "zero1"), (2, "zero2"), (3, "zero3"))
    for kind, precision in (("cpu", "fp32"), ("cuda", "bf16"), ("cuda", "fp16"))
    for offload in ("none", "cpu")
}


@pytest.mark.parametrize("name", OURS)
def test_our_own_deepspeed_files_have_no_finding(name, tmp_path):
    plan = OURS[name]
    (file,) = [f for f in render_bundle(plan, plan_examples.profile()) if f.path == "ds_config.json"]
    path = tmp_path / "ds_config.json"
    path.write_text(file.content)
    checked = check_file(path, loader="none", world_size=plan.parallelism.world_size)
    assert checked.kind == "deepspeed"
    assert checked.findings == ()


def test_deepspeeds_own_templates_have_no_error():
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or spec.origin is None:
        pytest.skip("deepspeed is not installed")
    templates = sorted((Path(spec.origin).parent / "autotuning" / "config_templates").glob("*.json"))
    assert templates
    for template in templates:
        codes = {f.code for f in check_file(template, loader="transformers").findings if f.severity != "note"}
        assert codes == set(), template


# in the form that transformers documents for its Trainer ("auto" everywhere the Trainer knows better)
TRAINER_ZERO3 = {
    "fp16": {
        "enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"},
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}  # fmt: skip


def test_the_trainers_form_is_right_for_the_trainer_and_wrong_for_a_plain_script(tmp_path):
    file = tmp_path / "zero3.json"
    file.write_text(json.dumps(TRAINER_ZERO3))
    assert check_file(file, loader="transformers", world_size=8).findings == ()
    assert {f.code for f in check_file(file).findings} == {"DS211"}
    assert check_file(file, loader="none").count("error") == json.dumps(TRAINER_ZERO3).count('"auto"')
    inside = tmp_path / "args.json"
    inside.write_text(json.dumps({"output_dir": "o", "bf16": True, "learning_rate": 1e-4, "deepspeed": TRAINER_ZERO3}))
    assert check_file(inside, world_size=8).findings == ()


ACCELERATE = {
    "fsdp2": """
        distributed_type: FSDP
        fsdp_config:
          fsdp_activation_checkpointing: false
          fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
          fsdp_cpu_ram_efficient_loading: false
          fsdp_offload_params: false
          fsdp_reshard_after_forward: true
          fsdp_state_dict_type: SHARDED_STATE_DICT
          fsdp_version: 2
        mixed_precision: bf16
        num_machines: 1
        num_processes: 8
        parallelism_config:
          parallelism_config_cp_size: 4
          parallelism_config_dp_replicate_size: 1
          parallelism_config_dp_shard_size: 2
          parallelism_config_tp_size: 1
        rdzv_backend: static
        same_network: true
        tpu_env: []
        use_cpu: false
    """,
    "fp8": """
        distributed_type: "NO"
        mixed_precision: "fp8"
        fp8_config:
          backend: TE
          amax_history_len: 1024
          fp8_format: E4M3
          interval: 1
          margin: 0
          override_linear_precision: [false, false, false]
          use_autocast_during_eval: false
    """,
    "deepspeed": """
        distributed_type: DEEPSPEED
        deepspeed_config:
          deepspeed_config_file: zero1.json
          zero3_init_flag: false
        num_processes: 2
    """,
    "machines": """
        compute_environment: LOCAL_MACHINE
        distributed_type: MULTI_GPU
        downcast_bf16: 'no'
        gpu_ids: all
        machine_rank: 1
        main_process_ip: 10.0.0.11
        main_process_port: 29500
        main_training_function: main
        mixed_precision: no
        num_machines: 2
        num_processes: 16
        rdzv_backend: static
        same_network: true
        tpu_use_cluster: false
    """,
}


@pytest.mark.parametrize("name", ACCELERATE)
def test_right_accelerate_files_have_no_finding(name, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(ACCELERATE[name])
    checked = check_file(file)
    assert checked.kind == "accelerate"
    assert checked.findings == ()


LIGHTNING = """
seed_everything: 42
trainer:
  accelerator: gpu
  devices: 8
  num_nodes: 2
  strategy:
    class_path: lightning.pytorch.strategies.DDPStrategy
    init_args:
      find_unused_parameters: false
      static_graph: true
      gradient_as_bucket_view: true
  precision: bf16-mixed
  accumulate_grad_batches: 4
  gradient_clip_val: 1.0
  max_steps: 1000
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
model:
  class_path: mine.Model
data: {}
ckpt_path: null
"""


def test_a_right_hydra_file_has_no_finding(tmp_path):
    file = tmp_path / "trainer.yaml"
    file.write_text("_target_: lightning.pytorch.Trainer\naccelerator: auto\ndevices: auto\nmax_epochs: 3\n")
    checked = check_file(file)
    assert (checked.kind, checked.findings) == ("lightning", ())


def test_a_right_lightning_cli_file_has_no_finding(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(LIGHTNING)
    checked = check_file(file, world_size=16)
    assert (checked.kind, checked.findings) == ("lightning", ())
