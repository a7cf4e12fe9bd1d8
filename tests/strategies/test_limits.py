from __future__ import annotations

import pytest
from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.schema.workload import ModelShape, Workload
from stratadvisor.strategies import STRATEGIES
from stratadvisor.strategies.limits import DIVIDING, obstacle

SMALL = shape_for_size(30e6)
GPUS = cluster(nodes(gpu("A100-80GB"), per_node=2))
CPUS = cluster(nodes(cpu(), per_node=2, intra=1e9), backend="gloo")


def test_nothing_stands_against_plain_training() -> None:
    for name in STRATEGIES:
        for where in (GPUS, CPUS):
            assert obstacle(name, where, Workload(model=SMALL)) == ""


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_muon_needs_whole_matrices(name: str) -> None:
    found = list(STRATEGIES[name].candidates(GPUS, Workload(model=SMALL, optimizer="muon")))
    if name in DIVIDING or name == "async_sgd":
        assert all(not c.feasible and "muon" in c.infeasible_reason for c in found)
    else:
        assert all(c.feasible for c in found)


def test_eight_bit_states_and_four_bit_weights_need_a_gpu() -> None:
    for changes in ({"optimizer": "adamw8bit"}, {"method": "qlora"}):
        workload = Workload.model_validate({"model": SMALL, **changes})
        assert "needs a" in obstacle("single", CPUS, workload)
        assert obstacle("single", GPUS, workload) == ""


def test_a_module_is_not_asked_to_recompute_layers() -> None:
    module = ModelShape(
        name="net", family="module", num_parameters=10_000_000, num_active_parameters=10_000_000, flops_per_item=1e9
    )
    for candidate in STRATEGIES["ddp"].candidates(GPUS, Workload(model=module, sequence_length=1)):
        assert candidate.layout.activation_checkpointing == "none"


def test_offload_keeps_fp32_states_whatever_the_weights_are() -> None:
    pure = Workload(model=SMALL, precision="bf16_pure")
    assert "fp32 states" in obstacle("zero_offload", GPUS, pure)
    assert [name for name in STRATEGIES if obstacle(name, GPUS, pure)] == ["zero_offload"]
