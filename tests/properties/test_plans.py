"""What holds for every plan of the whole pipeline: batch, degrees, intervals, names, unknowns."""

from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from stratadvisor import pipeline, store
from stratadvisor.emit.bundle import render_bundle
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.base import unknown
from stratadvisor.schema.plan import Interval, Plan
from stratadvisor.schema.profile import ClusterProfile

PIECES = ["1xT4", "1x8xA100-80GB", "3x4xRTX-4090", "2x4xT4,1x2xRTX-3090", "1x8xA100-80GB,1x8xV100-32GB", "5x3xH100"]
RATES = ["100Mb/s", "10Gb/s", "400Gb/s"]
workloads = st.builds(
    lambda size, method, batch, staleness: pipeline.make_workload(
        pipeline.resolve_model(model_size=size, model=None),
        method=method,
        global_batch_size=batch,
        max_staleness_steps=staleness,
    ),
    st.sampled_from(["125M", "1B", "7B", "30B"]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from([None, 7, 64, 1000]),
    st.sampled_from([0, 64]),
)
places = st.tuples(st.sampled_from(PIECES), st.sampled_from(RATES))
# what fails is shown as it was found: making it smaller takes minutes
some = settings(deadline=None, derandomize=True, max_examples=15, phases=(Phase.explicit, Phase.generate))


def profile_of(gpus: str, rate: str) -> ClusterProfile:
    return pipeline.load_cluster(cluster=None, gpus=gpus, inter_node=rate, intra_node=None)


def plan_of(profile: ClusterProfile, workload) -> Plan | None:
    try:
        return pipeline.recommend(profile, workload).plan
    except NoFeasiblePlanError:
        return None


def intervals(value: object) -> list[dict]:
    """Return every interval of a JSON document."""
    if isinstance(value, dict):
        own = [value] if {"low", "likely", "high"} <= set(value) else []
        return own + [found for item in value.values() for found in intervals(item)]
    return [found for item in value for found in intervals(item)] if isinstance(value, list) else []


LARGE = pipeline.make_workload(pipeline.resolve_model(model_size="70B", model=None), global_batch_size=64)


@given(places, workloads)
@example(("4x8xA100-80GB", "10Gb/s"), LARGE)  # layers are divided
@some
def test_batches_add_up_and_degrees_multiply_in_plan_and_files(where, workload):
    plan = plan_of(profile_of(*where), workload)
    if plan is None:
        return
    degrees = plan.parallelism
    assert degrees.world_size == (
        degrees.data_parallel_replicate_degree
        * degrees.data_parallel_shard_degree
        * degrees.tensor_parallel_degree
        * degrees.pipeline_parallel_degree
        * degrees.context_parallel_degree
    )
    assert degrees.world_size == sum(g.num_nodes * g.devices_per_node for g in plan.groups)
    files = {f.path: f.content for f in render_bundle(plan, profile_of(*where))}
    if plan.target == "megatron":
        lines = [line.split() for line in files["arguments.txt"].splitlines()]
        told = {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}
        names = ("tensor-model", "pipeline-model", "context")
        together = math.prod(told[f"--{name}-parallel-size"] for name in names)
        data, odd = divmod(degrees.world_size, together)
        assert odd == 0
        assert told["--global-batch-size"] == plan.batch.global_batch_size
        assert told["--global-batch-size"] % (told["--micro-batch-size"] * data) == 0
        return
    config = json.loads(files["train_config.json"])
    # the identity of the emitted file itself, not of the plan it came from
    devices = [(g["num_nodes"] * g["devices_per_node"], g) for g in config["groups"]]
    together = config.get("tensor_parallel_degree", 1)
    assert config["global_batch_size"] == sum(n * g["batch_per_device"] for n, g in devices) // together
    for _, g in devices:
        # a smaller share leaves slots empty: ranks that divide parameters take equally many micro-batches
        assert g["batch_per_device"] <= g["micro_batch_size"] * g["gradient_accumulation_steps"]
    if workload.global_batch_size is not None:
        assert config["global_batch_size"] == workload.global_batch_size
    if "ds_config.json" in files:
        deepspeed = json.loads(files["ds_config.json"])
        if "train_batch_size" in deepspeed:
            assert deepspeed["train_batch_size"] == (
                deepspeed["train_micro_batch_size_per_gpu"]
                * deepspeed["gradient_accumulation_steps"]
                * degrees.world_size
            )


@given(places, workloads)
@some
def test_every_interval_is_ordered_finite_and_not_negative(where, workload):
    plan = plan_of(profile_of(*where), workload)
    if plan is None:
        return
    found = intervals(json.loads(store.dump(plan)))
    assert len(found) >= 4
    for each in found:
        assert 0 <= each["low"] <= each["likely"] <= each["high"] < math.inf
    if workload.max_staleness_steps == 0:
        assert plan.synchronization.mode == "synchronous"


def test_an_interval_out_of_order_cannot_be_made():
    with pytest.raises(ValueError, match="out of order"):
        Interval(low=2, likely=1, high=3)


UNKNOWN = unknown("nobody looked")


def forget(profile: ClusterProfile, *, memory: bool, network: bool, host: bool) -> ClusterProfile:
    """Return the profile of cards that no catalog knows, with some readings missing."""
    nodes = []
    for node in profile.nodes:
        changes: dict = {}
        if memory:
            changes |= {"memory_total_bytes": UNKNOWN, "memory_free_bytes": UNKNOWN}
        devices = tuple(d.model_copy(update={"name": "odd card", "catalog_key": None, **changes}) for d in node.devices)
        update: dict = {"devices": devices}
        if network:
            update["network_bytes_per_second"] = UNKNOWN
        if host:
            update["host_memory"] = node.host_memory.model_copy(
                update={"total_bytes": UNKNOWN, "available_bytes": UNKNOWN}
            )
        nodes.append(node.model_copy(update=update))
    return profile.model_copy(update={"nodes": tuple(nodes)})


@given(places, workloads, st.booleans(), st.booleans())
@some
def test_an_unknown_memory_never_gives_a_plan_without_a_warning(where, workload, network, host):
    plan = plan_of(forget(profile_of(*where), memory=True, network=network, host=host), workload)
    assert plan is None or any("unknown memory" in w for w in plan.warnings)
    assert plan is None or all(g.memory_available_bytes is None for g in plan.groups)
    if plan is not None:
        assert plan.predicted.model_flops_utilization is None  # no peak is known of a card that nobody knows


@given(st.sampled_from([p for p in PIECES if "x" in p and not p.startswith("1x")]), workloads)
@some
def test_an_unknown_network_is_said(gpus, workload):
    plan = plan_of(forget(profile_of(gpus, "10Gb/s"), memory=False, network=True, host=False), workload)
    if plan is None or sum(g.num_nodes for g in plan.groups) < 2:
        return
    said = " ".join((*plan.warnings, *plan.assumptions))
    assert "unknown" in said
    assert "rate between nodes" in said


def renamed(profile: ClusterProfile, prefix: str) -> ClusterProfile:
    nodes = tuple(n.model_copy(update={"hostname": f"{prefix}-{i}"}) for i, n in enumerate(profile.nodes))
    return profile.model_copy(update={"nodes": nodes})


def answer(plan: Plan | None) -> object:
    """Return a plan with other names of hosts, and without digests of what it came from."""
    if plan is None:
        return None
    document = json.loads(re.sub(r"(north|south)-", "host-", store.dump(plan)))
    document.pop("provenance")
    document["groups"].sort(key=lambda g: (g["device_name"], g["num_nodes"]))
    return document


def spread(profile: ClusterProfile) -> ClusterProfile:
    """Return the same cluster with every node written out, each with a name of its own."""
    nodes = [
        node.model_copy(update={"hostname": f"{node.hostname}-{i}", "count": 1})
        for node in profile.nodes
        for i in range(node.count)
    ]
    return profile.model_copy(update={"nodes": tuple(nodes)})


@given(places, workloads)
@some
def test_names_of_hosts_do_not_change_the_answer(where, workload):
    profile = spread(profile_of(*where))
    assert answer(plan_of(renamed(profile, "south"), workload)) == answer(plan_of(renamed(profile, "north"), workload))


@given(places, workloads, st.randoms(use_true_random=False))
@some
def test_the_order_of_nodes_and_devices_does_not_change_the_answer(where, workload, order):
    profile = spread(profile_of(*where))
    nodes = [n.model_copy(update={"devices": tuple(order.sample(n.devices, len(n.devices)))}) for n in profile.nodes]
    order.shuffle(nodes)
    first = plan_of(profile, workload)
    second = plan_of(profile.model_copy(update={"nodes": tuple(nodes)}), workload)
    assert (first is None) == (second is None)
    if first is None or second is None:
        return
    assert (first.strategy, first.variant, first.batch) == (second.strategy, second.variant, second.batch)
    assert first.predicted == second.predicted
    assert sorted((g.device_name, g.num_nodes, g.batch_per_device) for g in first.groups) == sorted(
        (g.device_name, g.num_nodes, g.batch_per_device) for g in second.groups
    )
