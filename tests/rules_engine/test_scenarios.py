"""The flowchart on whole clusters: real candidates of the planner, real facts."""

from __future__ import annotations

from typing import Any

import pytest

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.derive.declared import parse_gpus
from stratadvisor.derive.facts import SPECS, derive_facts
from stratadvisor.planner import enumerate_candidates
from stratadvisor.rules_engine.load import load_ruleset
from stratadvisor.rules_engine.walk import walk
from stratadvisor.schema.rules import RuleOutcome
from stratadvisor.schema.workload import Workload

RULES = load_ruleset()


def ask(gpus: str, between: str | None = None, size: float = 1e9, **asked: Any) -> RuleOutcome:
    profile = parse_gpus(gpus, inter_node=between, intra_node=None)
    cluster = planning_cluster(profile)
    workload = Workload(model=shape_for_size(size), **asked)
    candidates = enumerate_candidates(cluster, workload)
    return walk(RULES, derive_facts(profile, cluster, workload, candidates), SPECS)


def branches(outcome: RuleOutcome) -> dict[str, str]:
    return {d.question: d.name for d in outcome.decisions}


def test_8_cards_with_nvlink_train_7b_in_step_without_offload() -> None:
    outcome = ask("8xA100-80GB", size=7e9)
    assert outcome.settings["family"] == "synchronous"
    assert outcome.settings["offload_allowed"] is False
    assert outcome.settings["minimum_sharding"] != "none"  # 16 bytes x 7e9 are more than 80 GB
    assert outcome.settings["precision"] == "bf16"
    assert branches(outcome)["network_of_equal_nodes"] == "exchange-hides"


def test_one_24_gb_card_holds_7b_only_with_host_memory_or_with_4_bit_weights() -> None:
    full = ask("1xRTX 4090", size=7e9)
    assert branches(full)["number_of_devices"] == "one-device-with-host-memory"
    assert full.settings["offload_allowed"] is True
    adapters = ask("1xRTX 4090", size=7e9, method="qlora")
    assert adapters.settings["family"] == "single"
    assert adapters.settings["offload_allowed"] is False


def test_unequal_nodes_get_shares_by_speed_on_a_sufficient_network_and_a_common_precision() -> None:
    outcome = ask("1x8xA100-80GB,1x8xV100-32GB", "400Gb/s")
    assert branches(outcome)["node_speeds"] == "nodes-unequal-in-speed"
    assert outcome.settings["family"] == "uneven_synchronous"
    assert outcome.settings["precision"] == "fp16"


def test_equal_nodes_on_a_slow_network_take_local_steps_unless_delays_are_forbidden() -> None:
    assert ask("2x8xA100-80GB", "1Gb/s").settings["family"] == "local_sgd"
    exact = ask("2x8xA100-80GB", "1Gb/s", max_staleness_steps=0)
    assert exact.settings["family"] == "synchronous"
    assert branches(exact)["network_of_equal_nodes"] == "exactness-required"


@pytest.mark.parametrize("size", [1e8, 1e9, 7e9])
def test_inexact_methods_are_for_one_range_of_bandwidths(size: float) -> None:
    # below it not even rare exchanges pay and one node trains alone, above it exact ones hide
    inexact = [
        ask("4x8xA100-80GB", rate, size).settings["family"] in ("local_sgd", "hierarchical", "asynchronous")
        for rate in ("1Gb/s", "10Gb/s", "100Gb/s", "800Gb/s", "3200Gb/s")
    ]
    rest = inexact[inexact.index(True) :] if any(inexact) else []
    assert rest == sorted(rest, reverse=True)
    assert inexact[-1] is False


def test_a_declared_cluster_names_no_interface_and_no_number_of_threads() -> None:
    outcome = ask("2x8xA100-80GB", "100Gb/s")
    assert not [key for key in outcome.settings if key.endswith(("_IFNAME", "OMP_NUM_THREADS"))]
