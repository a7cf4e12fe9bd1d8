from __future__ import annotations

import plan_examples
import pytest

from stratadvisor.costs.parameters import count_parameters
from stratadvisor.emit.figures import bucket_elements, figures, live_parameters
from stratadvisor.schema.plan import Interval


def sized(parameters: int):
    return plan_examples.small_model().model_copy(update={"num_parameters": parameters})


@pytest.mark.parametrize(
    ("parameters", "largest"),
    [(110_000_000, 5e7), (774_000_000, 1e8), (1_300_000_000, 1e8), (7_000_000_000, 5e8), (10**12, 5e8)],
)
def test_buckets_stay_small_beside_the_model(parameters, largest):
    model = sized(parameters)
    # the bounds at which published runs went out of memory: huggingface/DeepSpeed threads on small cards
    assert bucket_elements(model) <= largest


def test_buckets_grow_with_the_model_and_never_vanish():
    sizes = [bucket_elements(sized(10**exponent)) for exponent in range(3, 13)]
    assert sizes == sorted(sizes)
    assert min(sizes) > 0


def test_live_parameters_hold_some_layers_but_never_more_than_deepspeeds_own_limit():
    for plan in plan_examples.examples().values():
        model = plan.workload.model
        counts = count_parameters(model)
        assert min(2 * counts.per_layer, 1e9) <= live_parameters(model) <= 1e9
        assert live_parameters(model) >= min(counts.largest_matrix, 1e9)


def test_texts_carry_the_numbers_of_the_plan():
    texts = figures(plan_examples.examples()["uneven_ddp_gpu"])
    assert texts.model == "chosen for 7B (6.74B parameters)"
    assert texts.step == "1 s (90 % between 800 ms and 1.3 s)"
    assert texts.exposed_communication == "12.5 %"
    assert texts.utilization == "not known for this device"
    assert texts.energy == "not predicted"
    assert texts.groups[0].title == "2 nodes of 8 x NVIDIA A100-SXM4-80GB"
    assert texts.groups[1].title == "1 node of 4 x Tesla V100"
    assert texts.groups[0].memory == "3 GiB (90 % between 2.5 GiB and 4 GiB)"
    assert texts.groups[0].available == "8 GiB (measured)"
    assert texts.groups[0].share == "4 sequences a step in 1 micro-batch of up to 4"


@pytest.mark.parametrize(
    ("joules", "text"),
    [(1800.0, "0.5 Wh"), (3.6e6, "1 kWh"), (3.6e6 * 999.4, "999 kWh"), (3.6e6 * 11_000, "11 MWh"), (3.6e12, "1 GWh")],
)
def test_energy_is_told_in_the_unit_that_keeps_it_short(joules, text):
    plan = plan_examples.examples()["ddp_cpu"]
    interval = Interval(low=joules, likely=joules, high=joules)
    told = figures(plan.model_copy(update={"predicted": plan.predicted.model_copy(update={"energy_joules": interval})}))
    assert told.energy == f"{text} (90 % between {text} and {text})"


def test_an_unknown_memory_is_said_to_be_unknown():
    plan = plan_examples.make_plan(
        "ddp", "torchrun", (plan_examples.group().model_copy(update={"memory_available_bytes": None}),)
    )
    assert figures(plan).groups[0].available == "unknown"
