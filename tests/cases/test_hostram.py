"""Cases O-09 to O-13: does it fit the host?"""

from __future__ import annotations

import json

import pytest
from case_support import (
    ADAM,
    ADAM_STATES,
    FULL_OFFLOAD,
    GIB,
    card,
    cluster_of,
    declare,
    divided,
    files_of,
    node,
    plan_for,
    shape_of,
    stays,
)
from plan_for_tests import small_plan

from stratadvisor.costs.buffers import zero_bucket_elements
from stratadvisor.errors import NoFeasiblePlanError
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.validate.classify import classify
from stratadvisor.validate.launch import Ended


def test_o09() -> None:
    """6.7B with 31 GiB of host: 80 GB of optimizer states; a process killed by signal 9 had too little host memory."""
    assert ADAM_STATES * 6.7e9 > 31 * GIB
    with pytest.raises(NoFeasiblePlanError, match="31 GiB host memory"):
        plan_for(declare("1x3090", host_gib=31), "6.7B")
    killed = Ended(how="exit", exit_code=137, wall_seconds=60, peak_tree_bytes=30 * GIB, cgroup_oom_kills=0)
    cause = classify(killed, "loading\n", small_plan(), memory_limit_bytes=31 * GIB)
    assert cause.kind == "host_out_of_memory"
    assert "host memory" in cause.summary


def test_o10() -> None:
    """40B read by eight processes in fp32: 40e9 x 4 x 8 = 1280 GB; by one, 160 GB."""
    copies, one = 8 * 4 * 40e9, 4 * 40e9
    assert copies > 1000 * GIB > one
    where = declare("8xA100-80GB-SXM", host_gib=1000)
    plan = plan_for(where, "40B", method="lora")
    assert divided(plan)
    (said,) = [w for w in plan.warnings if "whole fp32 checkpoint" in w]
    assert "1.16 TiB" in said  # 40B as chosen has slightly fewer parameters: 1192 GiB
    assert copies / 2**40 == pytest.approx(1.16, rel=0.01)
    full = plan_for(declare("16xA100-80GB-SXM", host_gib=4000), "13B", strategy="fsdp2")
    written = files_of(full, where, beside=("accelerate",))["targets/accelerate/accelerate.yaml"]
    assert "fsdp_cpu_ram_efficient_loading: true" in written  # rank 0 alone reads, and hands the parts out


def test_o11() -> None:
    """70B with 248 GiB of host: five times too little for offload; 64 GiB on each of 16 devices."""
    seventy = shape_of("70B").num_parameters
    assert ADAM_STATES * seventy > 3 * 248 * GIB
    assert FULL_OFFLOAD * seventy > 4.5 * 248 * GIB
    with pytest.raises(NoFeasiblePlanError, match="248 GiB host memory") as refused:
        plan_for(declare("8xA100-80GB-SXM", host_gib=248), "70B")
    assert "--method lora" in refused.value.hint
    assert ADAM * seventy / 16 < 66 * GIB
    assert divided(plan_for(declare("8xA100-80GB-SXM", host_gib=248, nodes=2, network="200Gb/s"), "70B"))


def test_o12() -> None:
    """774M and 1.3B on a card of 15109 MiB with 24 GiB of host."""
    small = declare("1xT4", host_gib=24, more='device = { memory = "15109MiB" }')
    assert ADAM * 0.774e9 < 15109 * 2**20
    plan = plan_for(small, "774M")
    if not stays(plan):  # then it says how the card alone suffices
        assert any("fits without offload" in w and "--global-batch-size 1" in w for w in plan.warnings)
    assert stays(plan_for(small, "774M", global_batch_size=1))
    assert zero_bucket_elements(0.774e9) <= 1e8
    assert ADAM * 1.3e9 > 15109 * 2**20
    assert 1.25 * ADAM * 1.3e9 > 24 * GIB  # pinned copies are rounded up
    with pytest.raises(NoFeasiblePlanError, match="24 GiB host memory"):
        plan_for(small, "1.3B")


def test_o13() -> None:
    """WSL2 caps pinned memory: 1.5B needs offload there, and nothing may be pinned."""
    assert 0.9 * 24 * GIB < ADAM * shape_of("1.5B").num_parameters < 24.5 * GIB
    host = node(
        "desk",
        [card("NVIDIA GeForce RTX 3090", 0, 24576)],
        host_gib=50,
        versions={"linux": "5.15.153.1-microsoft-standard-WSL2", "torch": "2.13.0"},
    )
    where = cluster_of(host)
    plan = plan_for(where, "1.5B")
    assert plan.memory.optimizer_offload == "cpu"
    assert plan.settings["pin_memory"] is False
    assert any("WSL2" in w for w in plan.warnings)
    assert any("WSL2" in v.message for v in host_verdicts(host))
    zero = json.loads(files_of(plan, where)["ds_config.json"])["zero_optimization"]
    assert zero["offload_optimizer"]["pin_memory"] is False
    native = cluster_of(host.model_copy(update={"software": host.software.model_copy(update={"versions": {}})}))
    pinned = plan_for(native, "1.5B")
    zero = json.loads(files_of(pinned, native)["ds_config.json"])["zero_optimization"]
    assert zero["offload_optimizer"]["pin_memory"] is True
