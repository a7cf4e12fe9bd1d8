from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import GIGABIT, PROVENANCE, cluster, gpu, nodes, outcome, plan_for

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner import choose, enumerate_candidates
from stratadvisor.planner.request import in_family, read_request, uneven
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB

SMALL, MEDIUM = shape_for_size(350e6), shape_for_size(1.5e9)
NODE = cluster(nodes(gpu("A100-80GB")))
MIXED = cluster(nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB")), between=100 * GIGABIT)


@pytest.mark.parametrize("family", ["synchronous", "uneven_synchronous", "hierarchical", "local_sgd", "asynchronous"])
def test_the_choice_is_the_familys_own_where_it_is_kept(family: str) -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=2), between=100 * GIGABIT)
    workload = Workload(model=SMALL)
    plan = plan_for(where, workload, family=family)
    chosen = next(
        c for c in enumerate_candidates(where, workload) if c.strategy == plan.strategy and c.variant == plan.variant
    )
    assert in_family(chosen, family) or plan.warnings


def test_equal_shares_are_all_that_synchronous_contains() -> None:
    candidates = enumerate_candidates(MIXED, Workload(model=SMALL))
    members = [c for c in candidates if in_family(c, "synchronous")]
    assert members
    assert not any(uneven(c) for c in members)
    assert any(uneven(c) for c in candidates if in_family(c, "uneven_synchronous"))


def test_checkpointing_can_be_ruled_out() -> None:
    plan = plan_for(NODE, Workload(model=MEDIUM), family="synchronous", checkpointing_allowed=False)
    assert plan.memory.activation_checkpointing == "none"


def test_offload_can_be_ruled_out_and_gives_way_where_nothing_else_fits() -> None:
    where = cluster(nodes(gpu("RTX-4090"), per_node=1, host_bytes=512 * GIB))
    plan = plan_for(where, Workload(model=shape_for_size(7e9)), family="single", offload_allowed=False)
    assert plan.strategy == "zero_offload"
    assert any("the rules rule out offload" in w for w in plan.warnings)


def test_the_least_sharding_that_rules_ask_for_is_kept() -> None:
    plan = plan_for(NODE, Workload(model=SMALL), family="synchronous", minimum_sharding="gradients")
    assert plan.memory.sharding in ("gradients", "parameters")


def test_a_precision_that_rules_ask_for_is_kept() -> None:
    plan = plan_for(NODE, Workload(model=SMALL), family="synchronous", precision="fp32")
    assert plan.precision == "fp32"


def test_the_precision_of_the_whole_cluster_does_not_bind_a_part_of_it() -> None:
    slow = cluster(nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB")), between=1 * GIGABIT)
    plan = plan_for(slow, Workload(model=MEDIUM), family="uneven_synchronous", precision="fp16")
    assert [g.device_name for g in plan.groups] == ["A100-80GB"]
    assert plan.precision == "bf16"


def test_compression_reaches_the_plan_and_its_prediction() -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=2), between=10 * GIGABIT)
    workload = Workload(model=SMALL)
    plain = plan_for(where, workload, family="hierarchical")
    squeezed = plan_for(where, workload, family="hierarchical", compression="bf16")
    if squeezed.strategy == "hierarchical":
        assert squeezed.synchronization.compression == "bf16"
    assert squeezed.predicted.run_seconds.likely <= plain.predicted.run_seconds.likely * 1.03


def test_workers_compilation_and_environment_come_from_the_rules() -> None:
    one = cluster(nodes(gpu("A100-80GB"), per_node=1))
    settings = {"data_loader_workers": 3, "compile_model": True, "environment.NCCL_DEBUG": "WARN", "family": "single"}
    plan = plan_for(one, Workload(model=SMALL), **settings)
    assert plan.data_loader_workers == 3
    assert plan.compile_model
    assert plan.environment == {"NCCL_DEBUG": "WARN"}
    eager = plan_for(one, Workload(model=SMALL), family="single")
    assert plan.predicted.step_seconds.likely < eager.predicted.step_seconds.likely


def test_a_family_that_does_not_fit_gives_way_and_says_why() -> None:
    # a whole replica of 7B needs 100 GiB of states: no local SGD on cards of 80 GiB
    plan = plan_for(NODE, Workload(model=shape_for_size(7e9)), family="local_sgd")
    assert plan.family != "local_sgd"
    assert any("nothing of it fits" in w and "GiB" in w for w in plan.warnings)


def test_every_other_strategy_is_among_the_alternatives_once() -> None:
    workload = Workload(model=MEDIUM)
    plan = plan_for(MIXED, workload, family="uneven_synchronous")
    tried = {c.strategy for c in enumerate_candidates(MIXED, workload)}
    listed = [a.strategy for a in plan.alternatives]
    assert tried - {plan.strategy} <= set(listed)
    assert all(a.reason for a in plan.alternatives)
    assert all(listed.count(name) <= 2 for name in listed)  # at most once more, on other devices


def test_alternatives_that_fit_stand_first_by_predicted_time() -> None:
    plan = plan_for(NODE, Workload(model=shape_for_size(7e9)), family="synchronous")
    flags = [a.feasible for a in plan.alternatives]
    assert flags == sorted(flags, reverse=True)
    times = [a.run_seconds.likely for a in plan.alternatives if a.run_seconds is not None]
    assert times == sorted(times)


def test_a_run_costs_its_device_hours() -> None:
    workload = Workload(model=SMALL, price_per_device_hour=2.0)
    plan = plan_for(NODE, workload, family="synchronous")
    assert plan.predicted.cost is not None
    hours = plan.predicted.run_seconds.likely / 3600
    assert plan.predicted.cost.likely == pytest.approx(2.0 * plan.parallelism.world_size * hours)


def test_emissions_are_energy_times_the_given_intensity() -> None:
    workload = Workload(model=SMALL, grid_carbon_grams_per_kilowatt_hour=300.0)
    predicted = plan_for(NODE, workload, family="synchronous").predicted
    assert predicted.energy_joules is not None
    assert predicted.carbon_grams is not None
    assert predicted.carbon_grams.high == pytest.approx(predicted.energy_joules.high / 3.6e6 * 300)
    without = plan_for(NODE, Workload(model=SMALL), family="synchronous")
    assert without.predicted.carbon_grams is None
    assert without.predicted.energy_joules_per_thousand_samples is not None
    samples = without.predicted.run_steps * without.batch.global_batch_size
    each = without.predicted.energy_joules_per_thousand_samples.likely
    assert each == pytest.approx(predicted.energy_joules.likely * 1000 / samples)


def test_what_is_cheapest_never_takes_more_device_hours_than_what_is_fastest() -> None:
    where = cluster(nodes(gpu("A100-80GB"), count=4), between=10 * GIGABIT)

    def device_seconds(plan: Plan) -> float:
        return plan.predicted.run_seconds.likely * plan.parallelism.world_size

    plans = {
        objective: plan_for(where, Workload.model_validate({"model": SMALL, "objective": objective}))
        for objective in ("time", "cost", "energy")
    }
    # what is simpler may be chosen at up to a tenth more
    assert device_seconds(plans["cost"]) <= 1.12 * device_seconds(plans["time"])
    assert plans["time"].predicted.run_seconds.likely <= 1.12 * plans["cost"].predicted.run_seconds.likely
    energy = {o: p.predicted.energy_joules for o, p in plans.items()}
    assert energy["energy"] is not None
    assert energy["time"] is not None
    assert energy["energy"].likely <= 1.12 * energy["time"].likely


def test_predictions_agree_with_each_other() -> None:
    plan = plan_for(NODE, Workload(model=SMALL), family="synchronous")
    found = plan.predicted
    tokens = plan.batch.global_batch_size * plan.batch.sequence_length
    assert found.tokens_per_second.likely == pytest.approx(tokens / found.step_seconds.likely)
    assert found.run_seconds.likely == pytest.approx(found.run_steps * found.step_seconds.likely)
    assert found.run_steps * tokens == pytest.approx(found.run_tokens, rel=1e-3)
    assert sum(found.time_terms_seconds.values()) == pytest.approx(found.step_seconds.likely)
    utilization = found.model_flops_utilization
    assert utilization is not None
    peak = gpu("A100-80GB").peak_flops_per_second["bf16"] * plan.parallelism.world_size
    assert utilization.likely == pytest.approx(found.model_flops_per_step / found.step_seconds.likely / peak)
    assert 0 < utilization.likely < 1


def test_an_unlisted_device_has_no_utilization_and_its_memory_is_called_open() -> None:
    unlisted = replace(
        gpu("A100-80GB"),
        name="Mystery",
        catalog_key=None,
        peak_flops_per_second={},
        memory_total_bytes=None,
        compute_capability=None,
    )
    plan = plan_for(cluster(nodes(unlisted)), Workload(model=SMALL), family="synchronous")
    assert plan.predicted.model_flops_utilization is None
    assert plan.groups[0].memory_available_bytes is None
    assert plan.groups[0].memory_available_origin == "unknown"
    assert any("unknown memory of Mystery" in w for w in plan.warnings)


def test_earlier_runs_show_in_the_prediction() -> None:
    measured = replace(NODE, calibration_time_ratios={("A100-80GB", s): 2.0 for s in ("ddp", "fsdp2", "zero1")})
    assert not plan_for(NODE, Workload(model=SMALL), family="synchronous").predicted.calibrated
    plan = plan_for(measured, Workload(model=SMALL), family="synchronous")
    assert plan.predicted.calibrated == (plan.strategy in ("ddp", "fsdp2", "zero1"))


def test_assumptions_of_the_caller_and_the_planner_are_kept() -> None:
    workload = Workload(model=SMALL)
    candidates = enumerate_candidates(NODE, workload)
    plan = choose(
        NODE, workload, candidates, outcome(family="synchronous"), provenance=PROVENANCE, assumptions=("from derive",)
    )
    assert plan.assumptions[0] == "from derive"
    assert any(a.startswith("global batch") for a in plan.assumptions)
    assert any("arXiv:2203.15556" in a for a in plan.assumptions)


def test_the_same_inputs_give_the_same_plan() -> None:
    first, second = (plan_for(MIXED, Workload(model=MEDIUM), family="uneven_synchronous") for _ in range(2))
    assert first == second


def test_host_names_are_listed_and_change_nothing_else() -> None:
    names = ("n1", "n2")
    plain = cluster(nodes(gpu("A100-80GB"), count=2), between=1e10)
    named = cluster(nodes(gpu("A100-80GB"), count=2, hostnames=names), between=1e10)
    workload = Workload(model=SMALL)
    anonymous, known = (plan_for(c, workload, family="synchronous") for c in (plain, named))
    assert known.groups[0].hostnames == names[: known.groups[0].num_nodes]
    stripped = known.model_copy(update={"groups": tuple(g.model_copy(update={"hostnames": ()}) for g in known.groups)})
    assert stripped == anonymous


def test_settings_are_read_with_their_defaults() -> None:
    request = read_request(outcome())
    assert request.family is None
    assert request.offload_allowed
    assert request.compression == "none"


def test_what_deepspeed_runs_is_not_compiled() -> None:
    plan = plan_for(
        cluster(nodes(gpu("RTX-4090"), per_node=1)), Workload(model=shape_for_size(7e9)), compile_model=True
    )
    assert plan.target == "deepspeed"
    assert not plan.compile_model


def test_one_bit_compression_needs_an_optimizer_that_stands_it() -> None:
    for optimizer, expected in (("adamw", "none"), ("sgd", "sign")):
        workload = Workload.model_validate({"model": SMALL, "optimizer": optimizer})
        where = cluster(nodes(gpu("A100-80GB"), count=2), between=100 * GIGABIT)
        candidates = tuple(c for c in enumerate_candidates(where, workload) if c.strategy == "ddp")
        plan = choose(where, workload, candidates, outcome(compression="sign"), provenance=PROVENANCE)
        assert plan.synchronization.compression == expected
