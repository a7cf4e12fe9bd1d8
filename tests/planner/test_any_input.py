from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from planning_clusters import GIGABIT, cluster, cpu, gpu, nodes, plan_for

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.rules import FAMILIES
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB

DEVICES = [
    gpu("A100-80GB"),
    gpu("V100-32GB"),
    gpu("RTX-4090", free_bytes=3 * GIB),
    gpu("H100", memory_known=False),
    cpu(),
    cpu(bf16=1e11),
]
classes = st.builds(
    nodes,
    st.sampled_from(DEVICES),
    count=st.integers(1, 5),
    per_node=st.sampled_from([1, 2, 3, 7, 8]),
    intra=st.sampled_from([None, 1e9, 3e11]),
    network=st.sampled_from([None, GIGABIT]),
    host_bytes=st.sampled_from([None, 8 * GIB, 900 * GIB]),
)


def together(found: list, rate: float | None) -> Cluster:
    distinct = {c.name: c for c in found}.values()
    backend = "gloo" if any(c.device.kind == "cpu" for c in distinct) else "nccl"
    return cluster(*distinct, between=rate, backend=backend)


clusters = st.builds(together, st.lists(classes, min_size=1, max_size=4), st.sampled_from([None, GIGABIT, 5e10]))
workloads = st.builds(
    lambda size, method, optimizer, batch, precision, objective, staleness, price: Workload.model_validate(
        {
            "model": shape_for_size(size),
            "method": method,
            "optimizer": optimizer,
            "global_batch_size": batch,
            "precision": precision,
            "objective": objective,
            "max_staleness_steps": staleness,
            "price_per_device_hour": price,
        }
    ),
    st.sampled_from([10e6, 350e6, 7e9, 70e9]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from(["adamw", "adamw8bit", "adafactor", "sgd", "muon"]),
    st.sampled_from([None, 1, 13, 64, 1000]),
    st.sampled_from(["auto", "fp32", "bf16", "fp16"]),
    st.sampled_from(["time", "cost", "energy"]),
    st.sampled_from([0, 3, 64]),
    st.sampled_from([None, 2.5]),
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "family": st.sampled_from(FAMILIES),
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "offload_allowed": st.booleans(),
        "checkpointing_allowed": st.booleans(),
        "minimum_sharding": st.sampled_from(["none", "optimizer", "gradients", "parameters"]),
        "compression": st.sampled_from(["none", "bf16", "fp16", "sign"]),
        "data_loader_workers": st.integers(0, 9),
        "compile_model": st.booleans(),
    },
)


@given(clusters, workloads, rules)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_any_cluster_workload_and_rules_give_a_plan_or_the_number_that_kills_it(
    where: Cluster, workload: Workload, says: dict
) -> None:
    try:
        plan = plan_for(where, workload, **says)
    except NoFeasiblePlanError as error:
        assert error.message
        assert error.hint
        return
    available = {c.name: c.device.usable_memory_bytes for c in where.classes}
    for group in plan.groups:
        free = available[group.node_class]
        assert free is None or group.memory_peak_bytes.high <= free
        if free is None:
            assert any("unknown memory" in w for w in plan.warnings)
    if workload.global_batch_size is not None:
        assert plan.batch.global_batch_size == workload.global_batch_size
    if workload.max_staleness_steps == 0:
        assert plan.synchronization.mode == "synchronous"
    assert all(a.reason for a in plan.alternatives)
    assert plan.predicted.run_seconds.likely > 0
    assert (plan.predicted.cost is None) == (workload.price_per_device_hour is None)
