"""Arguments for Megatron-LM, read by a parser with the options of its own (``benchmarks/megatron_arguments.py``)."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import plan_examples
import pytest
from plan_examples import BatchPlan, MemoryPlan, Parallelism, group, large_model, make_plan

from stratadvisor.emit.bundle import render_bundle, write_bundle
from stratadvisor.emit.targets import choose_targets
from stratadvisor.errors import EmitError

LISTED = json.loads((Path(__file__).parent / "megatron_arguments.json").read_text())
A100 = {"device_name": "NVIDIA A100-SXM4-80GB", "micro": 1}
LARGE = {"sequence_length": 2048, "device_kind": "cuda", "precision": "bf16"}
EXPERTS = large_model().model_copy(
    update={
        "num_layers": 28,
        "num_experts": 64,
        "num_experts_per_token": 6,
        "num_shared_experts": 2,
        "num_dense_layers": 1,
        "ffn_hidden_size": 1408,
        "dense_ffn_hidden_size": 10944,
        "num_key_value_heads": 8,
    }
)


def divided(model, **degrees: object):
    """32 devices, 16 sequences of each, which the ranks of a model-parallel group share."""
    parallel = Parallelism(world_size=32, **degrees)
    together = parallel.tensor_parallel_degree * parallel.pipeline_parallel_degree * parallel.context_parallel_degree
    batch = BatchPlan(
        global_batch_size=32 * 16 // together, sequence_length=2048, micro_batch_size=1, gradient_accumulation_steps=16
    )
    memory = MemoryPlan(sharding="optimizer", activation_checkpointing="full")
    nodes = (group("a100", nodes=4, devices=8, accumulation=16, **A100),)
    return make_plan(
        "megatron_3d", "megatron", nodes, parallelism=parallel, batch=batch, memory=memory, model=model, **LARGE
    )


PLANS = {
    "dense": divided(
        large_model(),
        data_parallel_shard_degree=2,
        tensor_parallel_degree=4,
        pipeline_parallel_degree=2,
        context_parallel_degree=2,
        virtual_pipeline_chunks=2,
        sequence_parallel=True,
    ),
    "experts": divided(
        EXPERTS,
        data_parallel_shard_degree=8,
        tensor_parallel_degree=2,
        pipeline_parallel_degree=2,
        expert_parallel_degree=8,
        sequence_parallel=True,
    ),
    "ddp": make_plan(
        "ddp", "torchrun", (group("a100", devices=8, accumulation=2, **A100),), model=large_model(), **LARGE
    ),
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    kinds = {"int": int, "float": float, "text": str}
    for option, spec in LISTED["arguments"].items():
        if option == "--help":
            continue
        if spec["kind"] == "flag":
            made.add_argument(option, action="store_true")
        else:
            made.add_argument(option, type=kinds[spec["kind"]], choices=spec.get("choices"))
    return made


def words(name: str) -> list[str]:
    files = {f.path: f.content for f in render_bundle(PLANS[name], plan_examples.profile(), "megatron")}
    lines = files["arguments.txt"].splitlines()
    return [word for line in lines if not line.startswith("#") for word in line.split()]


@pytest.mark.parametrize("name", PLANS)
def test_its_parser_takes_every_argument_and_none_twice(name):
    found = words(name)
    parser().parse_args(found)
    options = [word for word in found if word.startswith("--")]
    assert len(options) == len(set(options))


@pytest.mark.parametrize("name", PLANS)
def test_arguments_do_not_contradict_each_other(name):
    """What validate_args of core_v0.19.0 asserts of these options."""
    plan, given = PLANS[name], parser().parse_args(words(name))
    world = plan.parallelism.world_size
    model_size = given.tensor_model_parallel_size * given.pipeline_model_parallel_size * given.context_parallel_size
    assert world % model_size == 0
    data_parallel = world // model_size
    assert given.global_batch_size % (given.micro_batch_size * data_parallel) == 0
    assert given.global_batch_size == plan.batch.global_batch_size
    chunks = given.num_virtual_stages_per_pipeline_rank or 1
    assert given.num_layers % (given.pipeline_model_parallel_size * chunks) == 0
    assert chunks == 1 or given.pipeline_model_parallel_size > 1
    assert not given.sequence_parallel or given.tensor_model_parallel_size > 1
    assert given.num_attention_heads % given.tensor_model_parallel_size == 0
    assert not (given.bf16 and given.fp16)
    assert given.max_position_embeddings >= given.seq_length
    assert not given.overlap_param_gather or (given.use_distributed_optimizer and given.overlap_grad_reduce)
    assert (given.recompute_granularity == "full") == (given.recompute_method is not None)
    assert given.lr_warmup_iters < given.train_iters
    assert given.seq_length % (2 * given.context_parallel_size) == 0
    if given.num_experts is not None:
        assert given.num_experts % given.expert_model_parallel_size == 0
        assert given.tensor_model_parallel_size == 1 or given.sequence_parallel  # moe beside tensor parallelism
        ranks = (
            given.expert_tensor_parallel_size * given.expert_model_parallel_size * given.pipeline_model_parallel_size
        )
        assert world % ranks == 0


def test_the_model_is_the_plans():
    given = parser().parse_args(words("experts"))
    assert (given.num_layers, given.num_experts, given.moe_router_topk) == (28, 64, 6)
    assert given.moe_shared_expert_intermediate_size == 2 * 1408
    assert (given.ffn_hidden_size, given.moe_ffn_hidden_size) == (10944, 1408)
    assert given.moe_layer_freq == "([0]*1+[1]*27)"
    assert (given.group_query_attention, given.num_query_groups) == (True, 8)
    assert given.use_distributed_optimizer
    assert not parser().parse_args(words("ddp")).use_distributed_optimizer


@pytest.mark.parametrize(
    ("strategy", "reason"), [("fsdp2", "FSDP"), ("zero3", "stage 1"), ("ddp", "GPUs only")], ids=str
)
def test_what_it_cannot_express_is_refused_with_the_reason(strategy, reason):
    plan = make_plan(strategy, "torchrun", (group(),), shard_degree=2 if strategy != "ddp" else 1)
    with pytest.raises(EmitError, match=reason) as caught:
        choose_targets(plan, ("megatron",))
    assert "can" in caught.value.hint


@pytest.fixture
def started(tmp_path: Path):
    """Start launch.sh of the dense plan beside an interpreter that writes down what it is told."""
    bundle = tmp_path / "a bundle"
    write_bundle(render_bundle(PLANS["ddp"], plan_examples.profile(), "megatron"), bundle)
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pretrain_gpt.py").write_text("")
    python = tmp_path / "python"
    python.write_text("#!/usr/bin/env bash\nprintf '%s\\0' \"$@\"\n")
    python.chmod(0o755)

    def start(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(python)} | variables
        command = ["bash", str(bundle / "launch.sh"), "--exit-interval", "3"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    return start, clone, bundle


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_start_script_hands_over_the_file_and_the_paths(started):
    start, clone, bundle = started
    done = start(MEGATRON_PATH=str(clone), DATA="mock")
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("\0")[:-1]
    assert told[:2] == ["-m", "torch.distributed.run"]
    assert "--nproc-per-node=8" in told
    program = told.index(str(clone / "pretrain_gpt.py"))
    assert told[program + 1 : program + 1 + len(words("ddp"))] == words("ddp")
    given = parser().parse_args(told[program + 1 :])
    assert given.mock_data
    assert given.tokenizer_type == "NullTokenizer"
    assert given.save == str(bundle / "run" / "checkpoints")
    assert given.exit_interval == 3


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_what_is_missing_is_one_sentence(started, tmp_path):
    start, clone, _ = started
    for variables, wanted in (
        ({}, "set MEGATRON_PATH"),
        ({"MEGATRON_PATH": str(tmp_path)}, "set MEGATRON_PATH"),
        ({"MEGATRON_PATH": str(clone)}, "set DATA"),
        ({"MEGATRON_PATH": str(clone), "DATA": "/nowhere"}, "there is no /nowhere.idx"),
    ):
        done = start(**variables)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert wanted in done.stderr
