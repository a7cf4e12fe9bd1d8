"""Cases O-69 and O-70: saving is part of fitting."""

from __future__ import annotations

import json

import pytest
from case_support import ADAM, ADAM_STATES, GIB, card, cluster_of, declare, files_of, node, plan_for, shape_of

from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.schema.base import reported
from stratadvisor.schema.profile import StorageProfile
from stratadvisor.surroundings import checkpoint_bytes


@pytest.mark.parametrize(("host", "gathers"), [(16, False), (64, True)])
def test_o69(host: int, gathers: bool) -> None:
    """9.4B on 16 cards of 16 GB: the gathered weights are 17.5 GiB of host, which 16 GiB cannot hold."""
    parameters = shape_of("9.4B").num_parameters
    assert ADAM * parameters / 16 / GIB == pytest.approx(8.8, rel=0.02)
    assert (2 * parameters / GIB > host) is not gathers
    where = declare("8xV100-16GB", host_gib=host, nodes=2, network="100Gb/s")
    plan = plan_for(where, "9.4B", strategy="zero3")
    zero = json.loads(files_of(plan, where)["ds_config.json"])["zero_optimization"]
    assert zero["stage3_gather_16bit_weights_on_model_save"] is gathers
    assert any("saved in shards" in w for w in plan.warnings) is not gathers
    assert ADAM_STATES * parameters / GIB == pytest.approx(105, rel=0.02)
    with pytest.raises(NoFeasiblePlanError, match=f"{host} GiB host memory"):
        plan_for(declare("8xV100-16GB", host_gib=host), "9.4B")  # 17.5 GiB of states on each card


def test_o70() -> None:
    """8B: 12 bytes of optimizer states and 2 of weights are 105 GiB on disk, three times that for three."""
    parameters = shape_of("llama-3-8b").num_parameters
    assert ADAM_STATES * parameters / GIB == pytest.approx(89.8, rel=0.01)
    disk = StorageProfile(path="/data", free_bytes=reported(150.0 * GIB))
    box = node("box", [card("NVIDIA A100-SXM4-80GB", 0, 81920)], host_gib=256).model_copy(update={"storage": (disk,)})
    plan = plan_for(cluster_of(box), "llama-3-8b")
    assert plan.memory.optimizer_offload == "cpu"
    assert checkpoint_bytes(plan) == (12 + 2) * parameters
    assert checkpoint_bytes(plan) / GIB == pytest.approx(105, rel=0.01)
    (said,) = [w for w in plan.warnings if "checkpoint" in w]
    assert "105 GiB" in said
    assert "314 GiB" in said
    assert "150 GiB free" in said
    assert "weights alone" in said
    larger = disk.model_copy(update={"free_bytes": reported(400.0 * GIB)})
    roomy = box.model_copy(update={"storage": (larger,)})
    assert not [w for w in plan_for(cluster_of(roomy), "llama-3-8b").warnings if "checkpoint" in w]
