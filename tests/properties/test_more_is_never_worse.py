"""More memory, bandwidth or devices never makes the best predicted time worse; what fits keeps fitting.

The best of all candidates is held exactly. The plan itself may be worse by what simplicity is worth, never more: a
simpler candidate wins unless the other gains its share (at most OTHER_PROGRAM_GAIN), ties within TIE, a marginal fit
counts MARGINAL_GAIN more, and mixing node classes must gain MIXING_GAIN.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stratadvisor import pipeline
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.planner import enumerate_candidates
from stratadvisor.planner.ranking import MARGINAL_GAIN, MIXING_GAIN, TIE
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.layout import Candidate
from stratadvisor.schema.workload import Workload
from stratadvisor.strategies.worth import OTHER_PROGRAM_GAIN

ROUNDING = 1 + 1e-9
COMPILED = 0.8
"""Another program has to beat the compiled form of the own one, which spares at most a fifth of a step here."""
PREFERENCE = (1 + TIE) * (1 + MARGINAL_GAIN) / (1 - MIXING_GAIN) / (1 - OTHER_PROGRAM_GAIN) / COMPILED
PIECES = [
    "1x8xA100-80GB",
    "2x8xA100-80GB",
    "4x8xH100",
    "3x4xRTX-4090",
    "2x2xT4",
    "1x2xV100-32GB",
    "3x1xRTX-3090",
    "1x8xA100-80GB,1x8xV100-32GB",
    "2x4xT4,1x2xRTX-3090",
]
RATES = ["100Mb/s", "1Gb/s", "10Gb/s", "100Gb/s", "400Gb/s"]
clusters = st.tuples(st.sampled_from(PIECES), st.sampled_from(RATES))
workloads = st.builds(
    lambda size, method, batch: pipeline.make_workload(
        pipeline.resolve_model(model_size=size, model=None),
        method=method,
        total_tokens="10B",
        global_batch_size=batch,
    ),
    st.sampled_from(["350M", "1B", "7B", "13B", "70B"]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.sampled_from([None, 64, 256]),
)
growths = st.sampled_from([1.05, 1.5, 2.0, 4.0])
few = settings(deadline=None, derandomize=True, max_examples=15, phases=(Phase.explicit, Phase.generate))


def cluster_of(gpus: str, rate: str) -> Cluster:
    return planning_cluster(pipeline.load_cluster(cluster=None, gpus=gpus, inter_node=rate, intra_node=None))


def best_seconds(candidates: tuple[Candidate, ...]) -> float:
    return min((c.run_seconds.likely for c in candidates if c.feasible), default=math.inf)


def times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def grown(cluster: Cluster, what: str, factor: float) -> Cluster:
    """Return the cluster with one quantity larger everywhere."""
    if what == "network":
        classes = tuple(
            replace(c, network_bytes_per_second=times(c.network_bytes_per_second, factor)) for c in cluster.classes
        )
        inter = times(cluster.inter_node_bytes_per_second, factor)
        return replace(cluster, classes=classes, inter_node_bytes_per_second=inter)
    if what == "inside nodes":
        return replace(
            cluster,
            classes=tuple(
                replace(c, intra_node_bytes_per_second=times(c.intra_node_bytes_per_second, factor))
                for c in cluster.classes
            ),
        )
    if what == "host":
        return replace(
            cluster,
            classes=tuple(replace(c, host_memory_bytes=times(c.host_memory_bytes, factor)) for c in cluster.classes),
        )
    field = {
        "memory": "memory_total_bytes",
        "memory bandwidth": "memory_bandwidth_bytes_per_second",
        "host link": "host_link_bytes_per_second",
    }[what]
    return replace(
        cluster,
        classes=tuple(
            replace(c, device=replace(c.device, **{field: times(getattr(c.device, field), factor)}))
            for c in cluster.classes
        ),
    )


def what_fits(candidates: tuple[Candidate, ...]) -> set[tuple[str, str]]:
    """Return strategy and variant of what fits; how often replicas meet follows from step times and may change."""
    return {(c.strategy, what_it_is(c)) for c in candidates if c.feasible}


def what_it_is(candidate: Candidate) -> str:
    """Return the variant; of Megatron-LM the degrees, since only the largest micro-batch of each is always tried."""
    layout = candidate.layout
    if layout.engine != "megatron":
        return re.sub(r"every \d+ steps", "now and then", candidate.variant)
    degrees = layout.tensor_parallel_degree, layout.pipeline_parallel_degree, layout.context_parallel_degree
    return f"{degrees} {layout.expert_parallel_degree} on {candidate.num_devices} devices"


@given(clusters, workloads, growths)
@few
def test_more_memory_is_never_worse_and_what_fits_keeps_fitting(where: tuple[str, str], workload: Workload, factor):
    cluster = cluster_of(*where)
    before = enumerate_candidates(cluster, workload)
    after = enumerate_candidates(grown(cluster, "memory", factor), workload)
    assert best_seconds(after) <= best_seconds(before) * ROUNDING
    assert what_fits(before) <= what_fits(after)


@given(clusters, workloads, growths, st.sampled_from(["network", "inside nodes", "memory bandwidth", "host link"]))
@few
def test_more_bandwidth_is_never_worse(where: tuple[str, str], workload: Workload, factor, what):
    cluster = cluster_of(*where)
    before = best_seconds(enumerate_candidates(cluster, workload))
    after = best_seconds(enumerate_candidates(grown(cluster, what, factor), workload))
    assert after <= before * ROUNDING


@given(clusters, workloads, st.sampled_from([1, 2, 3]))
@few
def test_more_nodes_are_never_worse(where: tuple[str, str], workload: Workload, further):
    cluster = cluster_of(*where)
    first, *rest = cluster.classes
    more = replace(cluster, classes=(replace(first, num_nodes=first.num_nodes + further, hostnames=()), *rest))
    if more.inter_node_bytes_per_second is None:  # a second node joins a cluster of one: it needs a network
        more = replace(more, inter_node_bytes_per_second=1e9)
    before = best_seconds(enumerate_candidates(cluster, workload))
    after = best_seconds(enumerate_candidates(more, workload))
    assert after <= before * ROUNDING


def plan_seconds(gpus: str, rate: str, workload: Workload) -> float:
    profile = pipeline.load_cluster(cluster=None, gpus=gpus, inter_node=rate, intra_node=None)
    try:
        return pipeline.recommend(profile, workload).plan.predicted.run_seconds.likely
    except NoFeasiblePlanError:
        return math.inf


@given(st.sampled_from([p for p in PIECES if not p.startswith("1x")]), st.integers(0, len(RATES) - 2), workloads)
@few
def test_a_better_network_makes_no_plan_worse_than_simplicity_is_worth(gpus: str, position: int, workload: Workload):
    slow = plan_seconds(gpus, RATES[position], workload)
    fast = plan_seconds(gpus, RATES[position + 1], workload)
    assert fast <= slow * PREFERENCE
