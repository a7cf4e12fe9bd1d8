from __future__ import annotations

import re

import pytest
from planning_clusters import cluster, gpu, nodes, plan_for

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB, parse_quantity

SEVEN = shape_for_size(7e9)


def failure(where: Cluster, workload: Workload) -> NoFeasiblePlanError:
    with pytest.raises(NoFeasiblePlanError) as caught:
        plan_for(where, workload)
    return caught.value


def test_7b_on_one_a100_with_a_small_host_names_both_numbers() -> None:
    error = failure(cluster(nodes(gpu("A100-80GB"), per_node=1, host_bytes=64 * GIB)), Workload(model=SEVEN))
    assert error.exit_code == 6
    needed = re.search(r"needs ([0-9.]+) GiB of the 80 GiB", error.message)
    assert needed is not None
    # 16 bytes for each of 6.7e9 parameters are 100 GiB
    assert float(needed.group(1)) > 100
    host = re.search(r"needs ([0-9.]+) GiB of the 64 GiB host memory", error.message)
    assert host is not None
    # 12 bytes of optimizer states for each parameter are 75 GiB
    assert float(host.group(1)) > 75


def test_every_proposed_change_really_fits() -> None:
    where = cluster(nodes(gpu("A100-80GB"), per_node=1, host_bytes=64 * GIB))
    hint = failure(where, Workload(model=SEVEN)).hint
    proposals = hint.removeprefix("what would fit: ").split("; ")
    assert proposals
    for proposal in proposals:
        method = re.fullmatch(r"--method (lora|qlora)", proposal)
        more = re.match(r"(\d+) devices like A100-80GB \((\d+) nodes", proposal)
        smaller = re.match(r"a model of about ([0-9.]+[BM]) parameters", proposal)
        optimizer = re.fullmatch(r"--optimizer adamw8bit", proposal)
        pure = re.match(r"--optimizer adamw8bit --precision bf16_pure \(", proposal)
        if method:
            plan_for(where, Workload.model_validate({"model": SEVEN, "method": method.group(1)}))
        elif more:
            larger = nodes(gpu("A100-80GB"), count=int(more.group(2)), per_node=1, host_bytes=64 * GIB)
            assert plan_for(cluster(larger), Workload(model=SEVEN)).parallelism.world_size <= int(more.group(1))
        elif smaller:
            plan_for(where, Workload(model=shape_for_size(parse_quantity(smaller.group(1), "count"))))
        elif optimizer:
            plan_for(where, Workload(model=SEVEN, optimizer="adamw8bit"))
        elif pure:
            plan_for(where, Workload(model=SEVEN, optimizer="adamw8bit", precision="bf16_pure"))
        else:
            pytest.fail(f"a change that this test does not know: {proposal}")


def test_a_card_held_by_something_else_is_named() -> None:
    held = gpu("RTX-3090", free_bytes=0.9 * GIB)
    error = failure(cluster(nodes(held, per_node=1, host_bytes=64 * GIB)), Workload(model=SEVEN))
    assert "MiB free on RTX-3090" in error.message
    assert "stopping what holds" in error.hint
    assert "--method" in error.hint


def test_the_batch_is_never_blamed_where_states_alone_do_not_fit() -> None:
    error = failure(cluster(nodes(gpu("A100-80GB"), per_node=1, host_bytes=64 * GIB)), Workload(model=SEVEN))
    assert "--seq-len" not in error.hint
    assert "batch-size" not in error.hint


def test_a_precision_that_no_device_has_is_the_reason_and_auto_the_cure() -> None:
    error = failure(cluster(nodes(gpu("V100-32GB"))), Workload(model=shape_for_size(350e6), precision="bf16"))
    assert "V100-32GB has no bf16 matrix units" in error.message
    assert "--precision auto" in error.hint
