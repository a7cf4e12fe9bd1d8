from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import candidate
from planning_clusters import cluster, gpu, nodes, outcome

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner.alternatives import alternatives
from stratadvisor.planner.request import Request, in_family, objection, read_request, uneven
from stratadvisor.schema.layout import Candidate, Layout, Span
from stratadvisor.schema.workload import Workload

A100, V100 = nodes(gpu("A100-80GB")), nodes(gpu("V100-32GB"))
ONE = nodes(gpu("A100-80GB"), per_node=1)
WHERE = cluster(A100, V100, between=1e10)
REPLICA = Layout(engine="ddp", data_parallel_replicate_degree=8)
ZERO2 = Layout(engine="deepspeed", data_parallel_shard_degree=8, sharding="gradients")
FAMILIES = ("single", "synchronous", "uneven_synchronous", "hierarchical", "local_sgd", "asynchronous", "federated")
MEMBERS = (
    ("single", candidate("single", ONE), {"single", "synchronous", "uneven_synchronous"}),
    ("offload on one", candidate("zero_offload", ONE), {"single", "synchronous", "uneven_synchronous"}),
    ("ddp", candidate("ddp", A100), {"synchronous", "uneven_synchronous"}),
    ("hsdp", candidate("hsdp", A100), {"synchronous", "uneven_synchronous", "hierarchical"}),
    # 8 x 6 + 8 x 2 sequences divide by 16: equal shares were possible; 8 x 6 + 8 x 3 do not
    ("by speed", candidate("uneven_ddp", A100, V100, batch=(6, 2)), {"uneven_synchronous"}),
    ("forced", candidate("uneven_ddp", A100, V100, batch=(6, 3)), {"synchronous", "uneven_synchronous"}),
    ("hierarchical", candidate("hierarchical", A100), {"hierarchical"}),
    ("diloco", candidate("diloco", A100), {"local_sgd"}),
    ("async", candidate("async_sgd", A100), {"asynchronous"}),
    ("federated", candidate("federated", A100), {"federated"}),
)


@pytest.mark.parametrize(("found", "families"), [m[1:] for m in MEMBERS], ids=[m[0] for m in MEMBERS])
def test_families_contain_what_they_say(found: Candidate, families: set[str]) -> None:
    assert {family for family in FAMILIES if in_family(found, family)} == families
    assert in_family(found, None)


def test_shares_are_uneven_when_classes_do_different_amounts() -> None:
    assert uneven(candidate("ddp", A100, V100, batch=(6, 3)))
    assert not uneven(candidate("ddp", A100, V100, batch=(6, 6)))
    assert not uneven(candidate("ddp", A100))


@pytest.mark.parametrize(
    ("request_", "layout", "broken"),
    [
        (Request(precision="fp32"), REPLICA, "fp32"),
        (Request(precision="bf16"), REPLICA, ""),
        (Request(precision="fp16"), REPLICA, ""),  # what the whole cluster would use
        (Request(offload_allowed=False), replace(ZERO2, optimizer_offload="cpu"), "offload"),
        (Request(offload_allowed=False), replace(ZERO2, parameter_offload="nvme"), "offload"),
        (Request(offload_allowed=False), ZERO2, ""),
        (Request(), replace(ZERO2, optimizer_offload="cpu"), ""),
        (Request(checkpointing_allowed=False), replace(REPLICA, activation_checkpointing="full"), "checkpointing"),
        (Request(checkpointing_allowed=False), REPLICA, ""),
        (Request(), replace(REPLICA, activation_checkpointing="full"), ""),
        (Request(model_parallel_allowed=False), replace(ZERO2, tensor_parallel_degree=2), "dividing layers"),
        (Request(model_parallel_allowed=False), replace(REPLICA, engine="megatron"), "dividing layers"),
        (Request(model_parallel_allowed=False), ZERO2, ""),
        (Request(), replace(ZERO2, tensor_parallel_degree=2), ""),
        (Request(minimum_sharding="optimizer"), REPLICA, "sharded optimizer"),
        (Request(minimum_sharding="gradients"), ZERO2, ""),
        (Request(minimum_sharding="parameters"), ZERO2, "sharded parameters"),
        (Request(minimum_sharding="parameters"), replace(ZERO2, sharding="parameters"), ""),
        # divided layers are another way to the same end
        (Request(minimum_sharding="parameters"), replace(ZERO2, tensor_parallel_degree=2), ""),
    ],
)
def test_the_rule_that_is_broken_is_named(request_: Request, layout: Layout, broken: str) -> None:
    said = objection(candidate("ddp", A100, layout=layout), request_, "fp16")
    assert broken in said
    assert bool(said) is bool(broken)


def test_one_device_has_nothing_to_shard() -> None:
    alone = candidate("single", ONE, layout=Layout(engine="torch"))
    assert objection(alone, Request(minimum_sharding="parameters"), "bf16") == ""


def test_settings_become_a_request() -> None:
    settings = {"family": "single", "data_loader_workers": -3, "environment.A": "1", "environment.B_C": "x y"}
    found = read_request(outcome(**settings))
    assert found == Request(family="single", data_loader_workers=0, environment={"A": "1", "B_C": "x y"})
    assert read_request(outcome(data_loader_workers=4)).data_loader_workers == 4


def listed(
    chosen: Candidate, *others: Candidate, objective: str = "time", family: str | None = None, broken: str = ""
) -> dict[str, tuple[str, float | None, bool]]:
    workload = Workload.model_validate({"model": shape_for_size(1e9), "objective": objective})
    found = alternatives(
        chosen,
        (chosen, *(c for c in others if not broken)),
        (),
        tuple((c, broken) for c in others if broken),
        WHERE,
        workload,
        inside=lambda c: in_family(c, family),
        finish=lambda c: c,
    )
    return {a.strategy: (a.reason, a.relative_to_choice, a.inside_family) for a in found}


CHOSEN = candidate("ddp", A100, run=100.0, layout=REPLICA)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (150.0, "predicted 50% slower"),
        (299.0, "predicted 199% slower"),
        (300.0, "predicted 3 times as long"),
        (1000.0, "predicted 10 times as long"),
        (101.9, "predicted nearly equal"),
        (98.1, "predicted nearly equal"),
        (97.0, "predicted 3% faster: too little for what it adds"),
        (60.0, "predicted 40% faster: too little for what it adds"),
    ],
)
def test_an_alternative_says_how_it_compares(run: float, reason: str) -> None:
    found = listed(CHOSEN, candidate("fsdp2", A100, run=run, layout=ZERO2))
    assert found["fsdp2"] == (reason, pytest.approx(run / 100), True)


def test_an_alternative_carries_its_whole_prediction() -> None:
    other = candidate("fsdp2", A100, run=200.0, layout=ZERO2, variant="another")
    other = replace(other, run_seconds=Span(low=150.0, likely=200.0, high=400.0))
    workload = Workload(model=shape_for_size(1e9))
    (found,) = alternatives(CHOSEN, (CHOSEN, other), (), (), WHERE, workload, inside=lambda _: True, finish=lambda c: c)
    run = found.run_seconds
    assert run is not None
    assert (run.low, run.likely, run.high) == (150.0, 200.0, 400.0)
    assert (found.strategy, found.variant, found.feasible) == ("fsdp2", "another", True)


def test_outside_the_family_nothing_is_said_of_what_it_adds() -> None:
    found = listed(CHOSEN, candidate("diloco", A100, run=60.0), family="synchronous")
    assert found["diloco"] == ("predicted 40% faster", pytest.approx(0.6), False)


def test_cost_is_compared_besides_time() -> None:
    half = nodes(gpu("A100-80GB"), per_node=4)
    where = replace(half, name=A100.name)  # four devices of the same class, 20 % slower: 0.6 of the device time
    found = listed(CHOSEN, candidate("zero1", where, run=120.0, layout=ZERO2), objective="cost")
    assert found["zero1"][0] == "predicted 20% slower, 40% cheaper: too little for what it adds"
    dear = listed(CHOSEN, candidate("zero1", A100, run=400.0, layout=ZERO2), objective="cost")
    assert dear["zero1"][0] == "predicted 4 times as long, 4 times as much"


def test_what_does_not_fit_or_breaks_a_rule_says_that() -> None:
    lacking = candidate("fsdp2", A100, feasible=False, reason="needs too much", layout=ZERO2)
    assert listed(CHOSEN, lacking)["fsdp2"] == ("needs too much", None, True)
    barred = candidate("fsdp2", A100, run=60.0, layout=ZERO2)
    assert listed(CHOSEN, barred, broken="the rules say no")["fsdp2"][0] == "the rules say no"


def test_the_best_on_other_devices_is_listed_though_its_strategy_is_chosen() -> None:
    elsewhere = candidate("ddp", V100, run=500.0, layout=REPLICA)
    assert listed(CHOSEN, elsewhere)["ddp"][0] == "predicted 5 times as long"
    assert "ddp" not in listed(CHOSEN, candidate("ddp", A100, run=120.0, layout=REPLICA))


def test_where_no_rule_said_anything_nothing_is_asked() -> None:
    asked = read_request(outcome())
    assert asked == Request()
    assert asked.data_loader_workers == 0  # torch.utils.data.DataLoader's own default: data is loaded by the rank
    assert read_request(outcome(data_loader_workers=-3)).data_loader_workers == 0
