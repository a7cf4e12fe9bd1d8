from __future__ import annotations

import json
import typing

import plan_examples
import pytest

from stratadvisor.emit.train_config import (
    ADAPTIVE_ENGINE,
    ADAPTIVE_STRATEGIES,
    ENGINES,
    NODE_ENGINES,
    checkpoint_interval_steps,
    learning_rate,
    refuses_adaptive,
    train_config,
    warmup_steps,
)
from stratadvisor.errors import EmitError
from stratadvisor.runtime import config as runtime_config
from stratadvisor.schema.plan import Interval
from stratadvisor.schema.workload import ModelShape

EXAMPLES = plan_examples.examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_training_program_accepts_the_configuration_and_reads_the_plans_numbers(name):
    plan = EXAMPLES[name]
    loaded = runtime_config.parse(json.loads(json.dumps(train_config(plan))))
    assert loaded.strategy == plan.strategy
    assert loaded.world_size == plan.parallelism.world_size
    assert loaded.global_batch_size == plan.batch.global_batch_size
    assert loaded.sequence_length == plan.batch.sequence_length
    assert loaded.precision == plan.precision
    assert loaded.activation_checkpointing == plan.memory.activation_checkpointing
    assert loaded.shard_degree * loaded.replicate_degree == plan.parallelism.world_size
    assert loaded.sync_interval_steps == plan.synchronization.sync_interval_steps
    assert loaded.max_staleness_steps == plan.synchronization.max_staleness_steps
    assert loaded.settings == plan.settings
    assert loaded.total_steps == plan.predicted.run_steps
    for ours, theirs in zip(loaded.groups, plan.groups, strict=True):
        assert (ours.node_class, ours.num_nodes, ours.devices_per_node) == (
            theirs.node_class,
            theirs.num_nodes,
            theirs.devices_per_node,
        )
        assert (ours.micro_batch_size, ours.gradient_accumulation_steps, ours.batch_per_device) == (
            theirs.micro_batch_size,
            theirs.gradient_accumulation_steps,
            theirs.batch_per_device,
        )
        assert ours.hostnames == theirs.hostnames


def test_the_two_sides_know_the_same_model_fields_and_configuration_keys():
    ours = set(train_config(EXAMPLES["ddp_cpu"]))
    theirs = {f for f in runtime_config.TrainConfig.__dataclass_fields__ if f != "directory"}
    assert ours | {"tensor_parallel_degree"} == theirs  # written where it is more than one
    assert set(ModelShape.model_fields) == set(runtime_config.ModelConfig.__dataclass_fields__)


def test_every_engine_named_exists_in_the_training_program():
    ours = set(ENGINES.values()) - {"megatron"}  # Megatron-LM's own program trains those plans
    assert ours | {ADAPTIVE_ENGINE, *NODE_ENGINES.values()} == set(typing.get_args(runtime_config.EngineName))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_adaptive_plan_gets_the_adaptive_engine_or_says_for_what_it_is(name):
    plan = EXAMPLES[name].model_copy(update={"adaptive": True})
    if plan.strategy in ADAPTIVE_STRATEGIES:
        loaded = runtime_config.parse(json.loads(json.dumps(train_config(plan))))
        assert loaded.engine == ADAPTIVE_ENGINE
        assert loaded.mode == plan.synchronization.mode
        assert not loaded.settings.keys() & {"fragments", "delay_steps", "sync_warmup_fraction"}
    else:
        with pytest.raises(EmitError, match=f"the plan is {plan.strategy}"):
            train_config(plan)


def test_a_strategy_without_a_training_program_is_an_error():
    plan = EXAMPLES["ddp_cpu"].model_copy(update={"strategy": "unheard_of"})
    with pytest.raises(EmitError, match="'unheard_of'"):
        train_config(plan)


def sized(num_parameters: int, **workload: object):
    plan = EXAMPLES["ddp_cpu"]
    model = plan.workload.model.model_copy(update={"num_parameters": num_parameters})
    return plan.model_copy(update={"workload": plan.workload.model_copy(update={"model": model, **workload})})


def test_larger_models_never_start_with_a_higher_learning_rate():
    rates = [learning_rate(sized(10**exponent)) for exponent in range(5, 13)]
    assert rates == sorted(rates, reverse=True)
    assert all(0 < rate <= 1e-3 for rate in rates)


def test_learning_rates_of_published_sizes_are_the_published_ones():
    # table 2.1 of arXiv:2005.14165
    published = {125e6: 6e-4, 350e6: 3e-4, 760e6: 2.5e-4, 1.3e9: 2e-4, 2.7e9: 1.6e-4, 6.7e9: 1.2e-4, 175e9: 0.6e-4}
    assert {size: learning_rate(sized(int(size))) for size in published} == published


def test_adapters_take_the_learning_rate_of_the_qlora_paper():
    assert learning_rate(sized(7_000_000_000, method="lora")) == 2e-4
    assert learning_rate(sized(65_000_000_000, method="qlora")) == 1e-4
    assert train_config(sized(7_000_000_000, method="lora"))["weight_decay"] == 0.0


def test_a_learning_rate_in_the_plan_wins():
    assert learning_rate(EXAMPLES["ddp_cpu"].model_copy(update={"settings": {"learning_rate": 0.25}})) == 0.25


def predicted(**changes: object):
    plan = EXAMPLES["ddp_cpu"]
    return plan.model_copy(update={"predicted": plan.predicted.model_copy(update=changes)})


@pytest.mark.parametrize(("steps", "expected"), [(100, 10), (4000, 10), (40_000, 100), (10_000_000, 2000)])
def test_warm_up_is_a_quarter_percent_within_bounds(steps, expected):
    assert warmup_steps(predicted(run_steps=steps)) == expected


@pytest.mark.parametrize(
    ("seconds", "steps", "expected"),
    [(1.0, 5000, 1800), (2.0, 5000, 900), (1.0, 500, 500), (7200.0, 50, 1), (0.0, 50, 50)],
)
def test_checkpoints_come_about_every_half_hour(seconds, steps, expected):
    interval = Interval(low=seconds, likely=seconds, high=seconds)
    assert checkpoint_interval_steps(predicted(step_seconds=interval, run_steps=steps)) == expected


def test_states_that_cannot_be_averaged_are_refused():
    plan = EXAMPLES["ddp_cpu"]
    workload = plan.workload.model_copy(update={"optimizer": "adamw8bit"})
    with pytest.raises(EmitError, match="adamw8bit quantizes"):
        train_config(plan.model_copy(update={"adaptive": True, "workload": workload}))


def test_replicas_that_are_nodes_have_an_engine_of_their_own():
    plan = EXAMPLES["diloco_cpu"]
    assert train_config(plan)["engine"] == "diloco"
    nodes = plan.parallelism.model_copy(
        update={"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": plan.parallelism.world_size}
    )
    assert train_config(plan.model_copy(update={"parallelism": nodes}))["engine"] == "diloco_nodes"
    assert "replicas are nodes" in refuses_adaptive(plan.model_copy(update={"parallelism": nodes}))


@pytest.mark.parametrize(("compression", "taken"), [("none", True), ("bf16", True), ("sign", False), ("int8", False)])
def test_adaptive_training_changes_the_exchange_and_so_takes_no_compression_with_a_memory(compression, taken):
    plan = EXAMPLES["ddp_cpu"]
    synchronization = plan.synchronization.model_copy(update={"compression": compression})
    refusal = refuses_adaptive(plan.model_copy(update={"synchronization": synchronization}))
    assert (refusal == "") is taken
    if not taken:
        assert refusal == f"adaptive training takes no compression {compression}"
