"""Changes that would make it fit: each is the smallest of its kind, and is proposed only where it helps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import cluster, cpu, gpu, nodes

from stratadvisor.catalog.sizes import shape_for_size
from stratadvisor.planner.infeasible import (
    SMALLER_SHARE,
    _changes,
    _feasible,
    _more_nodes,
    _shorter_sequence,
    _smaller_model,
    _smaller_states,
)
from stratadvisor.schema.cluster import Cluster
from stratadvisor.schema.workload import Workload
from stratadvisor.units import GIB

SHAPE = shape_for_size(350e6)


def card(gib: float, count: int = 1, free: float | None = None) -> Cluster:
    device = replace(
        gpu("A100-80GB"), memory_total_bytes=gib * GIB, memory_free_bytes=None if free is None else free * GIB
    )
    return cluster(nodes(device, count=count, per_node=1, host_bytes=4 * GIB), between=1e10)


def asked(length: int = 1024, **fields: object) -> Workload:
    return Workload.model_validate({"model": SHAPE, "sequence_length": length, "precision": "bf16", **fields})


def least(fits: object, low: float, high: float) -> float:
    """Return the memory at which something starts to fit, in GiB, to a hundredth."""
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)  # type: ignore[operator]
    return high


def test_the_longest_shorter_sequence_is_proposed() -> None:
    for length in (2048, 1024):
        room = least(lambda g, n=length: _feasible(card(g), asked(n)), 1.0, 40.0)
        assert _shorter_sequence(card(room * 1.01), asked(8192)) == length
    tight = least(lambda g: _feasible(card(g), asked(512)), 1.0, 40.0)
    assert _shorter_sequence(card(tight * 1.01), asked(1024)) == 512
    # nothing below 512 is tried
    assert _shorter_sequence(card(tight * 0.99), asked(2048)) is None
    assert _shorter_sequence(card(40), asked(1023)) is None


def test_as_few_more_nodes_as_fit_are_proposed() -> None:
    # 16 bytes for each of 0.35e9 parameters, 5.3 GiB over as many devices
    alone = least(lambda g: _feasible(card(g), asked()), 1.0, 40.0)
    small = card(alone * 0.95)
    factor = _more_nodes(small, asked())
    assert factor == 2
    smaller = card(least(lambda g: _feasible(card(g, 8), asked()), 0.5, 40.0) * 1.01)
    factor = _more_nodes(smaller, asked())
    assert factor in (4, 8)
    assert _feasible(card(smaller.classes[0].device.memory_total_bytes / GIB, factor), asked())  # type: ignore[operator]
    assert not _feasible(card(smaller.classes[0].device.memory_total_bytes / GIB, factor // 2), asked())  # type: ignore[operator]
    assert _more_nodes(card(0.7), asked()) is None
    # every device needs a sequence
    assert _more_nodes(small, asked(global_batch_size=2)) == 2
    assert _more_nodes(small, asked(global_batch_size=1)) is None


def test_the_largest_smaller_model_is_proposed() -> None:
    seven = Workload(model=shape_for_size(7e9), sequence_length=512, precision="bf16")
    for size, next_larger in ((1e9, 3e9), (350e6, 1e9)):
        room = least(
            lambda g, s=size: _feasible(card(g), seven.model_copy(update={"model": shape_for_size(s)})), 1.0, 60.0
        )
        assert not _feasible(card(room * 1.01), seven.model_copy(update={"model": shape_for_size(next_larger)}))
        assert _smaller_model(card(room * 1.01), seven) == size
    # hardly smaller is no other model
    assert SMALLER_SHARE * SHAPE.num_parameters < 350e6
    assert _smaller_model(card(40), asked()) == 125e6
    assert _smaller_model(card(0.7), asked()) is None


def test_recipes_of_fewer_bytes_are_proposed_in_order() -> None:
    def states(room: float, **fields: object) -> list[str]:
        return list(_smaller_states(card(room), asked(**fields)))

    def needed(**fields: object) -> float:
        return least(lambda g: _feasible(card(g), asked(**fields)), 1.0, 40.0) * 1.01

    assert states(needed(optimizer="adamw8bit")) == ["--optimizer adamw8bit"]
    (pure,) = states(needed(optimizer="adamw8bit", precision="bf16_pure"))
    assert pure.startswith("--optimizer adamw8bit --precision bf16_pure (6 bytes per parameter")
    (pure,) = states(needed(optimizer="adamw8bit", precision="bf16_pure"), optimizer="adamw8bit")
    assert pure.startswith("--precision bf16_pure (")
    assert states(0.9) == []
    room = needed(optimizer="adamw8bit", precision="bf16_pure")
    assert states(room, precision="bf16_pure") == ["--optimizer adamw8bit"]
    assert states(room, precision="bf16_pure", optimizer="adamw8bit") == []  # nothing smaller is left
    assert states(40, optimizer="sgd") == []
    assert states(40, method="lora") == []


def test_changes_come_smallest_first_and_only_where_they_help() -> None:
    room = least(lambda g: _feasible(card(g), asked(method="lora")), 0.8, 40.0) * 1.02
    said = list(_changes(card(room), asked()))
    assert "--method lora" in said
    assert "--method qlora" not in said
    assert said[-1].startswith("a model of about 125M parameters") or "devices like" in said[-1]
    # with a recipe of adapters already, only the packed one is smaller
    assert not [s for s in _changes(card(room * 0.5), asked(method="qlora")) if s.startswith("--method")]
    two = next(
        s
        for s in _changes(card(least(lambda g: _feasible(card(g), asked()), 1.0, 40.0) * 0.95), asked())
        if "devices" in s
    )
    assert two == "2 devices like A100-80GB (2 nodes instead of 1)"


def test_a_precision_that_was_asked_for_is_given_up_only_where_that_helps() -> None:
    old = cluster(nodes(gpu("V100-32GB"), per_node=1))
    assert next(_changes(old, asked())) == "--precision auto"
    assert "--precision auto" not in list(_changes(old, asked(precision="auto")))
    assert "--precision auto" not in list(_changes(card(0.9), asked()))


def test_what_holds_memory_is_named_where_stopping_it_helps() -> None:
    held = card(40, free=1.0)
    assert next(_changes(held, asked())) == "stopping what holds 39 GiB of A100-80GB"
    assert not [s for s in _changes(card(1.0, free=0.5), asked()) if s.startswith("stopping")]
    host = cluster(nodes(replace(cpu(memory_bytes=40 * GIB), memory_free_bytes=1 * GIB), per_node=1))
    assert not [s for s in _changes(host, asked(precision="fp32")) if "stopping" in s]


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_an_easier_method_may_need_the_memory_that_something_holds(method: str) -> None:
    seven = Workload(model=shape_for_size(7e9), sequence_length=512)
    room = least(lambda g: _feasible(card(g), seven.model_copy(update={"method": method})), 2.0, 40.0)
    held = card(room / 0.95 * 1.02, free=1.0)
    assert f"--method {method} after stopping what holds" in " ".join(_changes(held, seven))
