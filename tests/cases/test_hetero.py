"""Cases O-15 to O-19: unequal devices."""

from __future__ import annotations

import pytest
from case_support import ADAM, GIB, MIB, card, cluster_of, files_of, nic, node, plan_for, stays, together

from stratadvisor.errors import EmitError, NoFeasiblePlanError
from stratadvisor.probe.found import TorchDevice, TorchDevices
from stratadvisor.probe.lanes import accelerator_lanes


def test_o15() -> None:
    """8 GB and 16 GB in one box: planned by the smaller, with the larger one alone beside it on the same scale."""
    small, large = card("NVIDIA GeForce RTX 3070", 0, 8192), card("NVIDIA GeForce RTX 4080", 1, 16384)
    plan = plan_for(cluster_of(node("box", [small, large])), "300M")
    assert any("mixes devices" in w for w in plan.warnings)
    (group,) = plan.groups
    assert group.memory_available_bytes <= 8192 * MIB
    assert group.memory_peak_bytes.high <= 8192 * MIB
    (said,) = [w for w in plan.warnings if "1 x NVIDIA GeForce RTX 4080 alone" in w]
    assert large.uuid in said
    ratio = float(said.split("is predicted to take ")[1].split(" times as long")[0])
    alone = plan_for(cluster_of(node("box", [large])), "300M")
    assert ratio == pytest.approx(alone.predicted.run_seconds.likely / plan.predicted.run_seconds.likely, rel=0.05)
    assert ratio < 1  # here the larger one by itself is faster, as the thread says
    assert not plan.batch.uneven  # so no gradient needs a weight


def test_o16() -> None:
    """Two 40 GB and one 80 GB card: shards are equal, so that the smallest card is the ceiling, not the sum."""
    need = 3 * 42 * GIB
    parameters = need / ADAM
    assert 40 + 40 + 80 > 3 * 42 > 3 * 40
    cards = [card("NVIDIA A100-SXM4-40GB", 0, 40960), card("NVIDIA A100-SXM4-40GB", 1, 40960)]
    cards.append(card("NVIDIA A100-SXM4-80GB", 2, 81920))
    size = f"{parameters / 1e9:.2f}B"
    where = cluster_of(node("three", cards, host_gib=64))
    assert 12 * parameters > 64 * GIB  # and the host is no way out
    with pytest.raises(NoFeasiblePlanError, match="A100-SXM4-40GB"):
        plan_for(where, size)
    # it is the smallest card that is at fault: with three large ones there is a plan, and no host memory is needed
    large = [card("NVIDIA A100-SXM4-80GB", i, 81920) for i in range(3)]
    plan = plan_for(cluster_of(node("three", large, host_gib=64)), size)
    assert stays(plan)
    assert plan.memory.sharding != "none"
    assert plan.parallelism.world_size == 3


def test_o17() -> None:
    """A100 and V100 nodes: fp16 for both, interfaces by node, and the A100s alone beside it."""
    fast = node("fast", [card("NVIDIA A100-SXM4-40GB", i, 40960) for i in range(4)], nics=(nic("enp225s0"),))
    slow = node("slow", [card("Tesla V100-SXM2-32GB", i, 32508) for i in range(4)], nics=(nic("enp94s0"),))
    where = cluster_of(fast, slow)
    for strategy in (None, "uneven_ddp"):
        plan = plan_for(where, "1.5B", strategy=strategy)
        assert {g.device_name for g in plan.groups} == {"NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-32GB"}
        assert plan.precision == "fp16"
        assert plan.environment["NCCL_SOCKET_IFNAME"] == "enp225s0,enp94s0"
        written = files_of(plan, where)
        assert "for name in enp225s0 enp94s0" in written["launch.sh"]  # gloo gets the one that the node has
        assert "scaled_dot_product_attention" in written["stratadvisor_runtime/model.py"]
        assert not any("flash_attn" in text or "flash_attention_2" in text for text in written.values())
        if strategy is None:
            assert any("4xA100-40GB-SXM only" in a.variant and a.relative_to_choice for a in plan.alternatives)
        # equal shares would let the faster cards wait for 1 - 125 / 312 of each step; unequal ones follow the speeds
        busy = {g.device_name: g.batch_per_device for g in plan.groups}
        assert busy["NVIDIA A100-SXM4-40GB"] >= 2 * busy["Tesla V100-SXM2-32GB"]
    # who asks for equal shares is told that the V100s cost more than they bring
    equal = plan_for(where, "1.5B", strategy="ddp")
    assert {g.device_name for g in equal.groups} == {"NVIDIA A100-SXM4-40GB"}
    (said,) = [w for w in equal.warnings if "4 of 8 devices are left out" in w]
    assert float(said.split(" takes ")[1].split("% of the time")[0]) > 100


def test_o18() -> None:
    """8 + 2 devices: ten ranks, each node its own count, and no file that divides ten by two."""
    nodes = [
        node(name, [card("NVIDIA A100-SXM4-80GB", i, 81920) for i in range(count)], nics=(nic("eth0"),))
        for name, count in (("a", 8), ("b", 2))
    ]
    where = cluster_of(*nodes)
    for strategy in (None, "ddp", "zero2"):
        plan = plan_for(where, "1.5B", strategy=strategy)
        assert plan.parallelism.world_size == 8 + 2
        assert [g.devices_per_node for g in plan.groups] == [8, 2]
        assert sum(g.devices_per_node * g.batch_per_device for g in plan.groups) == (
            plan.batch.global_batch_size * together(plan)
        )
        written = files_of(plan, where)
        counts = written["launch.sh"].split("devices_of_node()")[1].split("}")[0]
        assert "printf '%s\\n' 8" in counts
        assert "printf '%s\\n' 2" in counts
        if strategy == "zero2":
            assert "a slots=8\nb slots=2\n" in written["hostfile"]
    with pytest.raises(EmitError, match="same number of processes on every node"):
        files_of(plan, where, beside=("accelerate",))


def test_o19() -> None:
    """The driver numbers by bus, CUDA by speed: identifiers, and an order that both share."""
    box = node(
        "box",
        [card("NVIDIA GeForce RTX 5090", 0, 32607), card("NVIDIA RTX PRO 6000 Blackwell Server Edition", 1, 97887)],
    )
    where = cluster_of(box)
    assert len({d.uuid for d in box.devices}) == 2
    plan = plan_for(where, "1B", strategy="ddp")
    assert plan.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "set_default CUDA_DEVICE_ORDER PCI_BUS_ID" in files_of(plan, where)["launch.sh"]
    assert any(box.devices[1].uuid in w for w in plan.warnings)  # how to take the larger one alone
    assert stays(plan)
    one = plan_for(where, "1B", strategy="single")
    (taken,) = {d.uuid for d in box.devices if d.name == one.groups[0].device_name}
    launcher = files_of(one, where)["launch.sh"]
    order = launcher.index("set_default CUDA_DEVICE_ORDER PCI_BUS_ID")
    assert order < launcher.index(f"set_default CUDA_VISIBLE_DEVICES {taken}")
    # torch numbers them the other way round; the driver's numbers keep their meaning
    listed = tuple(
        TorchDevice(
            index=index,
            name=device.name,
            uuid=device.uuid.removeprefix("GPU-"),
            compute_capability=(12, 0),
            memory_total_bytes=int(device.memory_total_bytes.value or 0),
            memory_free_bytes=int(device.memory_free_bytes.value or 0),
        )
        for index, device in enumerate(reversed(box.devices))
    )
    lanes = accelerator_lanes(box.devices, TorchDevices(kind="cuda", devices=listed))
    assert [(lane.device_index, lane.torch_name) for lane in lanes] == [(0, "cuda:1"), (1, "cuda:0")]
