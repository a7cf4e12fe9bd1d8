"""Cases O-66 and O-67: mixtures of experts hold all experts."""

from __future__ import annotations

import pytest
from case_support import ADAM, ADAM_STATES, GIB, declare, divided, needs, plan_for, shape_of

from stratadvisor.errors import NoFeasiblePlanError

A100 = "8xA100-80GB-SXM"


def test_o66() -> None:
    """LoRA on Mixtral: 93.4 GB of frozen base do not fit a card, an eighth of it does."""
    base = 2 * shape_of("mixtral-8x7b").num_parameters
    assert base == pytest.approx(93.4e9, rel=0.001)
    whole = needs("mixtral-8x7b", method="lora", engine="ddp", activation_checkpointing="full")
    assert whole.terms_bytes["parameters"] == pytest.approx(base, rel=0.01)
    assert whole.terms_bytes["parameters"] > 79 * GIB
    plan = plan_for(declare(A100), "mixtral-8x7b", method="lora")
    assert divided(plan)
    ddp = next(a for a in plan.alternatives if a.strategy == "ddp")
    assert not ddp.feasible
    assert "of the 80 GiB" in ddp.reason
    held = plan_for(declare(A100), "mixtral-8x7b", method="lora", strategy="zero3")
    assert held.groups[0].memory_terms_bytes["parameters"] == pytest.approx(base / 8, rel=0.01)
    assert any("set_z3_leaf_modules" in text for text in held.assumptions)


def test_o67() -> None:
    """Mixtral in full: 93.4 GB on each of 8 cards, so 560 GB of host, or 16 cards."""
    parameters = shape_of("mixtral-8x7b").num_parameters
    assert ADAM * parameters / 8 > 80 * GIB > ADAM * parameters / 16
    assert 2 * parameters > 80 * GIB  # stage 2 keeps all weights
    assert ADAM_STATES * parameters > 500 * GIB
    with pytest.raises(NoFeasiblePlanError, match="500 GiB host memory"):
        plan_for(declare(A100, host_gib=500), "mixtral-8x7b")
    assert plan_for(declare(A100, host_gib=1000), "mixtral-8x7b").memory.optimizer_offload == "cpu"
    two = declare(A100, host_gib=500, nodes=2, network="200Gb/s")
    assert divided(plan_for(two, "mixtral-8x7b"))
