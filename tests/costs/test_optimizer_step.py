from __future__ import annotations

from dataclasses import replace

import pytest
from time_cases import CPU, LLAMA_7B, gpu, nodes

from stratadvisor.costs import constants as fitted
from stratadvisor.costs.host import NVME_BUFFER_ELEMENTS, PINNED_FACTOR, offloaded, server_bytes
from stratadvisor.costs.optimizer_step import optimizer_seconds
from stratadvisor.schema.layout import Layout

# 2 TB/s measured on the device, 20 GB/s to the host, whose memory moves 400 GB/s and whose 64 cores could do more
DEVICE = gpu(
    "A100-80GB",
    memory_bandwidth_bytes_per_second=2e12,
    host_link_bytes_per_second=20e9,
    origins={"memory_bandwidth_bytes_per_second": "measured"},
)
NODE = nodes(
    DEVICE,
    1,
    8,
    host_memory_bandwidth_bytes_per_second=400e9,
    storage_read_bytes_per_second=5e9,
    cpu_cores=400e9 / fitted.CPU_ADAM_BYTES_PER_CORE_PER_SECOND * 2,
)
ZERO = Layout(engine="deepspeed", data_parallel_shard_degree=8, sharding="parameters")
HELD = 1e9


def test_states_are_swept_once_through_device_memory() -> None:
    for optimizer, each in fitted.OPTIMIZER_BYTES.items():
        if optimizer == "muon":
            continue
        layout = replace(ZERO, optimizer=optimizer)  # type: ignore[arg-type]
        found = optimizer_seconds(LLAMA_7B, layout, NODE, HELD, 8)
        assert found.update_seconds == pytest.approx(HELD * each / 2e12)
        assert (found.offload_seconds, found.offload_micro_batch_seconds, found.assumptions) == (0.0, 0.0, ())


def test_muon_multiplies_square_matrices_besides() -> None:
    layout = replace(ZERO, optimizer="muon")
    measured = replace(DEVICE, peak_flops_per_second={}, measured_flops_per_second={"bf16": 1e14})
    found = optimizer_seconds(LLAMA_7B, layout, replace(NODE, device=measured), HELD, 8)
    products = HELD * fitted.MUON_FLOPS_PER_PARAMETER_PER_WIDTH * 4096 / (1e14 * fitted.SUSTAINED_SHARE)
    assert found.update_seconds == pytest.approx(HELD * fitted.OPTIMIZER_BYTES["muon"] / 2e12 + products)


@pytest.mark.parametrize(("precision", "weight"), [("bf16", 2), ("fp32", 4)])
def test_an_offloaded_optimizer_moves_gradients_down_and_weights_up_and_updates_on_the_host(
    precision: str, weight: int
) -> None:
    layout = replace(ZERO, optimizer_offload="cpu", precision=precision)  # type: ignore[arg-type]
    update = HELD * 8 * fitted.CPU_ADAM_BYTES / 400e9  # eight ranks share the host
    found = optimizer_seconds(LLAMA_7B, layout, NODE, HELD, 8)
    assert found.offload_seconds == pytest.approx(2 * weight * HELD / 20e9 + update)
    assert (found.update_seconds, found.offload_micro_batch_seconds) == (0.0, 0.0)
    # 8 copies at a time read and write host memory: 400 / 16 = 25 GB/s each, less than a faster link
    fast = replace(NODE, device=replace(DEVICE, host_link_bytes_per_second=60e9))
    found = optimizer_seconds(LLAMA_7B, layout, fast, HELD, 8)
    assert found.offload_seconds == pytest.approx(2 * weight * HELD / 25e9 + update)


def test_states_on_storage_are_read_and_written_every_step() -> None:
    memory, storage = (
        optimizer_seconds(LLAMA_7B, replace(ZERO, optimizer_offload=where), NODE, HELD, 8)  # type: ignore[arg-type]
        for where in ("cpu", "nvme")
    )
    # master weight and two moments in fp32, there and back, of all eight ranks
    assert storage.offload_seconds - memory.offload_seconds == pytest.approx(HELD * 8 * 3 * 4 * 2 / 5e9)


def test_offloaded_weights_come_in_forward_and_backward() -> None:
    layout = replace(ZERO, parameter_offload="cpu")
    found = optimizer_seconds(LLAMA_7B, layout, NODE, HELD, 8)
    part = 6_738_415_616 / 8
    assert found.offload_micro_batch_seconds == pytest.approx(2 * 2 * part / 20e9)
    assert found.update_seconds == pytest.approx(HELD * fitted.OPTIMIZER_BYTES["adamw"] / 2e12)
    assert found.offload_seconds == 0.0
    divided = replace(layout, tensor_parallel_degree=2, pipeline_parallel_degree=4)
    quarter = optimizer_seconds(LLAMA_7B, divided, NODE, HELD, 8)
    assert quarter.offload_micro_batch_seconds == pytest.approx(2 * 2 * part / 8 / 20e9)


def test_few_cores_update_slower_than_memory_moves() -> None:
    layout = replace(ZERO, optimizer_offload="cpu")
    few = replace(NODE, cpu_cores=4.0)
    speed = 4 * fitted.CPU_ADAM_BYTES_PER_CORE_PER_SECOND
    assert speed < 400e9
    found = optimizer_seconds(LLAMA_7B, layout, few, HELD, 2)
    link = min(20e9, speed / 4)
    assert found.offload_seconds == pytest.approx(4 * HELD / link + HELD * 2 * fitted.CPU_ADAM_BYTES / speed)


def test_what_nobody_states_is_assumed_and_said() -> None:
    blind = replace(
        NODE,
        device=replace(DEVICE, host_link_bytes_per_second=None),
        host_memory_bandwidth_bytes_per_second=None,
        storage_read_bytes_per_second=None,
        cpu_cores=None,
    )
    found = optimizer_seconds(LLAMA_7B, replace(ZERO, optimizer_offload="nvme"), blind, HELD, 8)
    link = min(fitted.ASSUMED_HOST_LINK, fitted.ASSUMED_HOST_BANDWIDTH / 16)
    moved = 4 * HELD / link + HELD * 8 * fitted.CPU_ADAM_BYTES / fitted.ASSUMED_HOST_BANDWIDTH
    assert found.offload_seconds == pytest.approx(moved + HELD * 8 * 24 / fitted.ASSUMED_STORAGE)
    said = " ".join(found.assumptions)
    assert len(found.assumptions) == 3
    for rate in (fitted.ASSUMED_HOST_LINK, fitted.ASSUMED_HOST_BANDWIDTH, fitted.ASSUMED_STORAGE):
        assert f"{rate / 1e9:.0f} GB/s" in said


def test_optimizers_on_a_processor_take_their_own_time() -> None:
    node = nodes(CPU, 1, 2)
    plain = Layout(engine="ddp", precision="fp32", data_parallel_replicate_degree=2)
    sweep = HELD * fitted.OPTIMIZER_BYTES["adamw"] / 2e10
    adamw = optimizer_seconds(LLAMA_7B, plain, node, HELD, 2).update_seconds
    assert adamw == pytest.approx(sweep * fitted.CPU_OPTIMIZER_FACTOR["adamw"])
    sgd = optimizer_seconds(LLAMA_7B, replace(plain, optimizer="sgd"), node, HELD, 2).update_seconds
    assert sgd == pytest.approx(HELD * fitted.OPTIMIZER_BYTES["sgd"] / 2e10 * fitted.CPU_LOOPED_OPTIMIZER_FACTOR)
    # DeepSpeed handles every whole gradient, of which a rank holds the eighth that it updates
    zero = replace(ZERO, precision="fp32", sharding="optimizer")
    found = optimizer_seconds(LLAMA_7B, zero, node, HELD, 2).update_seconds
    handled = 8 * HELD * fitted.CPU_DEEPSPEED_BYTES_PER_PARAMETER / 2e10
    assert found == pytest.approx(sweep * fitted.CPU_DEEPSPEED_OPTIMIZER_FACTOR + handled)
    whole = optimizer_seconds(LLAMA_7B, replace(zero, sharding="none"), node, HELD, 2).update_seconds
    assert whole == pytest.approx(sweep * fitted.CPU_DEEPSPEED_OPTIMIZER_FACTOR + handled / 8)


def test_host_and_storage_hold_what_is_offloaded() -> None:
    states, gradients, weights = 12e9, 4e9, 2e9  # of 1e9 elements: fp32 master and moments, fp32 gradients, 16 bit
    to_host = replace(ZERO, optimizer_offload="cpu", parameter_offload="cpu")
    assert offloaded(to_host, weights, gradients, states, 1e9) == pytest.approx((PINNED_FACTOR * 18e9, 0.0))
    # storage holds states and weights; host memory what is in use of them
    to_storage = replace(ZERO, optimizer_offload="nvme", parameter_offload="nvme")
    four = tuple(4 * x for x in (weights, gradients, states))
    share = NVME_BUFFER_ELEMENTS / 4e9
    host = PINNED_FACTOR * (64e9 * share + 2 * NVME_BUFFER_ELEMENTS)
    assert offloaded(to_storage, *four, 4e9) == pytest.approx((host, 56e9))
    small = offloaded(to_storage, weights / 10, gradients / 10, states / 10, 1e8)
    assert small == pytest.approx((PINNED_FACTOR * 1.8e9, 1.4e9))
    assert offloaded(ZERO, weights, gradients, states, 1e9) == (0.0, 0.0)


def test_the_server_keeps_what_each_worker_read() -> None:
    # fp32 weights, AdamW's two moments, the sum, its compensation and their result, then 6 bytes for each of 4 workers
    assert server_bytes(4, 8.0, 1e6) == (4 + 8 + 12 + 24) * 1e6
