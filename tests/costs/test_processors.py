"""What Python takes on a rank with part of a processor, from the time of one small operation there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planning_clusters import cpu
from time_cases import LLAMA_7B, cluster, ddp, gpu, nodes, work

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.compute import micro_batch_seconds
from stratadvisor.costs.processors import (
    LOOP_HOST_SECONDS_PER_STEP,
    OPERATIONS_PER_KERNEL,
    UPDATE_KERNELS_PER_LAYER,
    USUAL_OPERATION_SECONDS,
    launch_seconds,
    slowness,
    update_seconds,
)
from stratadvisor.costs.step import estimate_step
from stratadvisor.schema.cluster import NodeClass
from stratadvisor.schema.layout import Layout

TORCH = Layout(engine="torch")


def host(operation_seconds: float | None, **more: float) -> NodeClass:
    found = nodes(replace(cpu(), operation_seconds=operation_seconds), 2, 1)
    return replace(found, cpu_cores=1.0, **more)  # type: ignore[arg-type]


def test_a_small_operation_sets_the_pace_of_all_others() -> None:
    # twice the time of a core with nothing else to do, for the launches, the engine and the loop
    half = host(2 * USUAL_OPERATION_SECONDS)
    per_kernel = 2 * USUAL_OPERATION_SECONDS * OPERATIONS_PER_KERNEL
    expected = 100 * per_kernel + 2 * (1e-3 + LOOP_HOST_SECONDS_PER_STEP)
    assert launch_seconds(100 * fitted.CPU_OPERATION_SECONDS, 1e-3, TORCH, half) == pytest.approx(expected)
    assert update_seconds(3, TORCH, half) == pytest.approx(3 * UPDATE_KERNELS_PER_LAYER * per_kernel)
    # engines with a loop of their own bring its time themselves
    own = replace(TORCH, engine="deepspeed")
    assert launch_seconds(0.0, 1e-3, own, half) == pytest.approx(2e-3)
    assert update_seconds(3, own, half) == 0.0


def test_where_none_was_timed_shares_of_processors_tell() -> None:
    assert launch_seconds(0.01, 0.002, TORCH, host(None)) == pytest.approx(0.012)
    assert launch_seconds(0.01, 0.002, TORCH, host(None, processor_share=0.5)) == pytest.approx(0.024)
    assert update_seconds(3, TORCH, host(None)) == 0.0
    assert slowness(host(None, processor_share=0.0)) == 100.0
    card = nodes(replace(gpu("A100-80GB"), operation_seconds=1.0), 1, 8)
    assert launch_seconds(0.01, 0.0, TORCH, card) == pytest.approx(0.01)


def test_a_step_has_them() -> None:
    usual, slow = host(USUAL_OPERATION_SECONDS), host(3 * USUAL_OPERATION_SECONDS)

    def terms(of: NodeClass) -> dict[str, float]:
        return estimate_step(LLAMA_7B, ddp(2), cluster(of), work(of, 1, 1), strategy="ddp").terms_seconds

    one, three, never = terms(usual), terms(slow), terms(host(None))
    assert three["launch"] == pytest.approx(3 * one["launch"])
    assert three["matmul"] == one["matmul"]
    compute = micro_batch_seconds(LLAMA_7B, ddp(2), usual.device, 1).terms_seconds["launch"]
    kernel = USUAL_OPERATION_SECONDS * OPERATIONS_PER_KERNEL / fitted.CPU_OPERATION_SECONDS
    engine = fitted.ENGINE_HOST_SECONDS_PER_STEP["ddp"] + LOOP_HOST_SECONDS_PER_STEP
    assert one["launch"] == pytest.approx(compute * kernel + engine)
    update = LLAMA_7B.num_layers * UPDATE_KERNELS_PER_LAYER * USUAL_OPERATION_SECONDS * OPERATIONS_PER_KERNEL
    assert one["optimizer"] - never["optimizer"] == pytest.approx(update)
