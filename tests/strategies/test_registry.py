from __future__ import annotations

from importlib.resources import files

from stratadvisor.schema.rules import FAMILIES
from stratadvisor.strategies import STRATEGIES

NAMES = {
    "single", "ddp", "uneven_ddp", "hierarchical", "fsdp2", "hsdp",
    "zero1", "zero2", "zero3", "zero_offload", "tp_fsdp2", "megatron_3d", "diloco", "async_sgd", "federated",
}  # fmt: skip


def test_every_strategy_is_listed_under_its_own_name() -> None:
    assert set(STRATEGIES) == NAMES
    assert all(name == strategy.name for name, strategy in STRATEGIES.items())


def test_every_strategy_has_its_own_file() -> None:
    for name in STRATEGIES:
        assert (files("stratadvisor.strategies") / f"{name}.py").is_file()


def test_families_are_those_that_rules_can_choose_and_each_is_reachable() -> None:
    assert {s.family for s in STRATEGIES.values()} == set(FAMILIES)


def test_targets_are_template_folders() -> None:
    targets = ("torchrun", "deepspeed", "async", "megatron", "flower")
    by_target = {t: {s.name for s in STRATEGIES.values() if s.target == t} for t in targets}
    assert by_target["megatron"] == {"megatron_3d"}
    assert by_target["deepspeed"] == {"zero1", "zero2", "zero3", "zero_offload"}
    assert by_target["async"] == {"diloco", "async_sgd"}
    assert set().union(*by_target.values()) == NAMES
