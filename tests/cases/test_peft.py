"""Cases O-64 and O-65: frozen weights."""

from __future__ import annotations

import json

import pytest
from case_support import GIB, declare, files_of, plan_for, shape_of, stays

from stratadvisor.errors import NoFeasiblePlanError, UsageError


def test_o64() -> None:
    """4-bit weights are whole on every card (7.3 GB of 13B): no stage 3, no offload of parameters."""
    where = declare("4x3090", host_gib=128)
    plan = plan_for(where, "13B", method="qlora")
    assert plan.memory.sharding != "parameters"
    assert stays(plan)
    assert plan.groups[0].memory_terms_bytes["parameters"] == pytest.approx(7.3e9, rel=0.1)
    assert not [a for a in plan.alternatives if a.feasible and a.strategy in ("zero3", "fsdp2", "hsdp", "zero_offload")]
    for strategy in ("zero3", "fsdp2"):
        with pytest.raises((UsageError, NoFeasiblePlanError)):
            plan_for(where, "13B", method="qlora", strategy=strategy)
    assert json.loads(files_of(plan, where)["train_config.json"])["method"] == "qlora"


def test_o65() -> None:
    """DPO adds a frozen reference: 2 P, not 16 P, divided where parameters are; a pair is two sequences."""
    policy = shape_of("7.72B").num_parameters
    where = declare("8xA100-80GB-SXM", host_gib=1000)
    pairs = {"sequence_length": 2048, "global_batch_size": 16, "frozen_parameters": "7.72B"}
    plan = plan_for(where, "7.72B", strategy="zero2", **pairs)
    terms = plan.groups[0].memory_terms_bytes
    held = sum(terms[name] for name in ("parameters", "gradients", "optimizer_states", "frozen_models"))
    assert (2 * policy + 14 * policy / 8 + 2 * 7.72e9) / GIB == pytest.approx(held / GIB, rel=0.03)
    assert 41 <= held / GIB <= 45
    assert terms["frozen_models"] == 2 * 7.72e9
    third = plan_for(where, "7.72B", strategy="zero3", **pairs).groups[0].memory_terms_bytes
    assert third["frozen_models"] == 2 * 7.72e9 / 8
    assert (16 * policy + 2 * 7.72e9) / 8 / GIB == pytest.approx(16.2, abs=0.3)
    assert any("precompute_ref_log_probs" in text and "two of the batch" in text for text in plan.assumptions)
    alone = plan_for(where, "7.72B", strategy="zero2", sequence_length=2048, global_batch_size=16)
    assert plan.predicted.step_seconds.likely > alone.predicted.step_seconds.likely  # its forward passes
    pair = plan.groups[0].micro_batch_size * plan.groups[0].gradient_accumulation_steps
    assert pair == plan.groups[0].batch_per_device == 2  # a chosen and a rejected sequence on each device
