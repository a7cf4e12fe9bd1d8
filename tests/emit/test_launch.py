from __future__ import annotations

import plan_examples
import pytest
from plan_examples import group, make_plan

from stratadvisor.emit.launch import launch_facts
from stratadvisor.errors import EmitError


def test_node_ranks_follow_the_order_of_the_groups():
    facts = launch_facts(plan_examples.examples()["uneven_ddp_gpu"])
    assert [(r.first, r.last, r.devices_per_node) for r in facts.ranges] == [(0, 1, 8), (2, 2, 4)]
    assert [r.ranks for r in facts.ranges] == ["0 to 1", "2"]
    assert (facts.num_nodes, facts.world_size) == (3, 2 * 8 + 1 * 4)
    assert facts.hostnames == ("fast-1", "fast-2", "slow-1")


def test_groups_are_mixed_only_when_a_device_or_a_share_differs():
    same = make_plan("ddp", "torchrun", (group("a"), group("b")))
    assert launch_facts(same).mixed is False
    for other in (group("b", devices=1), group("b", micro=1), group("b", accumulation=2)):
        assert launch_facts(make_plan("uneven_ddp", "torchrun", (group("a"), other))).mixed is True


def test_host_names_count_only_when_every_node_has_its_own():
    named = group("a", nodes=2, hostnames=("x", "y"))
    assert launch_facts(make_plan("ddp", "torchrun", (named, group("b")))).hostnames == ()
    assert launch_facts(make_plan("ddp", "torchrun", (named, group("b", hostnames=("x",))))).hostnames == ()
    assert launch_facts(make_plan("ddp", "torchrun", (named, group("b", hostnames=("z",))))).hostnames == (
        "x",
        "y",
        "z",
    )


@pytest.mark.parametrize("name", ["a b", "x\ny slots=9", "#c", "$(id)", "", "-f", "a;b", "h slots=3", "ü"])
def test_a_name_that_is_no_host_name_gets_a_placeholder_in_the_hostfile(name):
    lines = launch_facts(make_plan("zero1", "deepspeed", (group("a", nodes=2, hostnames=("good-1.x", name)),))).hostfile
    assert [(line.name, line.placeholder) for line in lines] == [("good-1.x", False), ("node-1.invalid", True)]
    assert [line.slots for line in lines] == [2, 2]


def test_a_name_that_appears_twice_is_a_placeholder_since_a_hostfile_may_not_repeat_it():
    lines = launch_facts(make_plan("zero1", "deepspeed", (group("a", nodes=2, hostnames=("x", "x")),))).hostfile
    assert [line.name for line in lines] == ["node-0.invalid", "node-1.invalid"]


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "A\nB", "$(id)", "LD;x"])
def test_a_variable_no_shell_accepts_is_refused(name):
    with pytest.raises(EmitError, match="not a name a shell accepts"):
        launch_facts(make_plan("ddp", "torchrun", environment={name: "1"}))


def test_the_environment_is_sorted():
    facts = launch_facts(make_plan("ddp", "torchrun", environment={"B": "1", "A": "2"}))
    assert list(facts.environment) == ["A", "B"]
