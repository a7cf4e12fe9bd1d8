"""Cases O-20 to O-24: what the network gives, and what its label says."""

from __future__ import annotations

import pytest
from case_support import (
    GIB,
    LOOPBACK,
    MIB,
    card,
    cluster_of,
    declare,
    files_of,
    needs,
    nic,
    node,
    plan_for,
    shape_of,
    states_bytes,
)

from stratadvisor.derive.cluster import planning_cluster, planning_view
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.profile import CollectiveSweep, DeviceLink, SweepPoint
from stratadvisor.strategies import STRATEGIES
from stratadvisor.units import format_rate, parse_quantity


def best_step(where, workload, strategy: str, *, nodes: int) -> float:
    """Return the fastest step of one strategy that uses so many nodes, per sequence of its batch."""
    found = [
        c.time.step_seconds.likely / c.global_batch_size
        for c in STRATEGIES[strategy].candidates(planning_cluster(where), workload)
        if c.feasible and sum(s.num_nodes for s in c.shares) == nodes
    ]
    return min(found)


def test_o20() -> None:
    """1.5B over 1.1 GB/s: stage 3 gathers in every micro-batch, stages 1 and 2 exchange once a step."""
    from stratadvisor import pipeline

    parameters, ranks, wire = shape_of("1.5B").num_parameters, 4, 1.1e9
    gathered = 3 * 2 * parameters * (ranks - 1) / ranks  # per rank and micro-batch
    assert gathered / wire > 5
    assert (2 * parameters + 14 * parameters / ranks) / GIB < 8.5
    zero2 = needs(
        "1.5B", engine="deepspeed", sharding="gradients", data_parallel_shard_degree=4, gradient_accumulation_steps=2
    )
    assert states_bytes(zero2) < 24 * GIB
    where = declare("2xA10", host_gib=128, nodes=2, network="1.1GB/s")
    plan = plan_for(where, "1.5B")
    one_node = sum(g.num_nodes for g in plan.groups) == 1
    assert one_node or plan.strategy in ("zero1", "zero2")
    assert all(g.batch_per_device >= 2 * g.micro_batch_size for g in plan.groups)  # summed up, exchanged once
    compared = {a.strategy: a.relative_to_choice for a in plan.alternatives if a.relative_to_choice is not None}
    assert {"zero1", "zero2", "zero3"} <= {plan.strategy, *compared}
    assert compared["zero3"] > 1
    # the same two sequences for each device: 2.46 s on one node, 8.68 s on two
    steps = [
        best_step(where, pipeline.make_workload(shape_of("1.5B"), global_batch_size=4 * n), "zero3", nodes=n) * 4 * n
        for n in (1, 2)
    ]
    assert steps[1] >= 2 * steps[0]
    assert steps[1] >= gathered / wire / 1.5  # overlap hides a part


def sweep(bus: float, interface: str = "") -> CollectiveSweep:
    points = tuple(
        SweepPoint(
            message_bytes=size,
            seconds=size / bus,
            algorithm_bandwidth_bytes_per_second=bus,
            bus_bandwidth_bytes_per_second=bus,
        )
        for size in (MIB, 64 * MIB)
    )
    return CollectiveSweep(
        operation="all_reduce",
        scope="inter_node",
        backend="nccl",
        world_size=2,
        num_nodes=2,
        interface=interface,
        points=points,
        latency_seconds=measured(5e-5),
        bus_bandwidth_bytes_per_second=measured(bus),
    )


def test_o21() -> None:
    """The label says 40 Gb/s, the collective says 0.92 GB/s: the measurement decides, and bits are not bytes."""
    assert parse_quantity("9.37Gb/s", "bytes_per_second") == pytest.approx(9.37e9 / 8)
    assert format_rate(1.05e9) == "1.05 GB/s"
    nics = (nic("eth0", bits_per_second=10e9), nic("thunderbolt0", bits_per_second=40e9, address="10.1.0.11"))
    hosts = [node(name, [card("NVIDIA A10", 0, 23028)], nics=nics) for name in ("a", "b")]
    labelled = planning_view(cluster_of(*hosts))
    assert labelled.cluster.inter_node_bytes_per_second == 40e9 / 8
    assert any("interfaces report" in text for text in labelled.assumptions)
    for bus in (1.05e9, 0.92e9):
        seen = planning_view(cluster_of(*hosts, collectives=(sweep(bus),)))
        assert seen.cluster.inter_node_bytes_per_second == bus
        assert seen.cluster.origins["inter_node_bytes_per_second"] == "measured"
    measurements = sweep(1.05e9, "eth0"), sweep(0.92e9, "thunderbolt0")
    for order in (measurements, measurements[::-1]):
        both = cluster_of(*hosts, collectives=order)
        assert planning_view(both).cluster.inter_node_bytes_per_second == 1.05e9
        plan = plan_for(both, "350M", strategy="ddp")
        assert plan.environment["NCCL_SOCKET_IFNAME"] == "eth0"  # the better collective, on the slower label
    assert plan_for(cluster_of(*hosts), "350M", strategy="ddp").environment["NCCL_SOCKET_IFNAME"] == "thunderbolt0"


def test_o22() -> None:
    """An idle card shows PCIe generation 1: its slot is judged by what it can do; missing lanes are missing."""
    idle = card(
        "NVIDIA A10",
        0,
        23028,
        pcie_generation_current=1,
        pcie_generation_max=4,
        pcie_width_current=16,
        pcie_width_max=16,
        throttle_reasons=("gpu_idle",),
    )
    found = host_verdicts(node("a", [idle]))
    assert not [v for v in found if v.level == "warning" and "PCIe" in v.message]
    rate = planning_cluster(cluster_of(node("a", [idle]))).classes[0].device.host_link_bytes_per_second
    lanes_gen4 = 16 * 1.969e9
    assert 0.7 * lanes_gen4 < rate <= lanes_gen4
    narrow = idle.model_copy(update={"pcie_width_current": 4})
    assert any(v.level == "warning" and "4 of 16 lanes" in v.message for v in host_verdicts(node("a", [narrow])))


def test_o23() -> None:
    """One bridge among four cards: rings run over PCIe, and two devices are the two that it joins."""
    cards = [card("NVIDIA GeForce RTX 2080 Ti", i, 11264) for i in range(4)]
    links = tuple(
        DeviceLink(device_a=a, device_b=b, kind="nvlink" if (a, b) == (2, 3) else "host_bridge")
        for a in range(4)
        for b in range(a + 1, 4)
    )
    box = node("box", cards, links=links)
    where = cluster_of(box)
    assert any("only 1 of 6 GPU pairs have NVLink (2-3)" in v.message for v in host_verdicts(box))
    kind = planning_cluster(where).classes[0]
    assert kind.nvlink is False
    assert kind.intra_node_bytes_per_second < 25.8e9 / 2  # not that of the bridge
    plan = plan_for(where, "110M", strategy="ddp", global_batch_size=2)
    assert plan.groups[0].devices_per_node == 2
    launcher = files_of(plan, where)["launch.sh"]
    assert f"set_default CUDA_VISIBLE_DEVICES {cards[2].uuid},{cards[3].uuid}" in launcher


def test_o24() -> None:
    """InfiniBand that the container cannot open: sockets, said with both missing things."""
    fabric = nic("ib0", bits_per_second=25e9, kind="infiniband", rdma_device="mlx5_bond_0", rdma_usable=False)
    ethernet = nic("eth0", bits_per_second=10e9)
    hosts = []
    for name in ("a", "b"):
        host = node(name, [card("NVIDIA A100-SXM4-80GB", 0, 81920)], nics=(ethernet, fabric, LOOPBACK))
        memory = host.host_memory.model_copy(update={"memlock_bytes": reported(64 * 1024.0)})
        hosts.append(host.model_copy(update={"host_memory": memory}))
    said = " ".join(v.message + v.advice for v in host_verdicts(hosts[0]))
    assert "mlx5_bond_0" in " ".join(v.subject for v in host_verdicts(hosts[0]))
    assert "/dev/infiniband" in said
    assert "64 KiB" in said
    assert "plain sockets" in said
    seen = planning_view(cluster_of(*hosts))
    assert seen.cluster.inter_node_bytes_per_second == 10e9 / 8  # what sockets can use, not what the card could
    alone = [h.model_copy(update={"nics": (fabric, LOOPBACK)}) for h in hosts]
    assert planning_view(cluster_of(*alone)).cluster.inter_node_bytes_per_second < 25e9 / 8
    usable = [h.model_copy(update={"nics": (fabric.model_copy(update={"rdma_usable": True}),)}) for h in hosts]
    assert planning_view(cluster_of(*usable)).cluster.inter_node_bytes_per_second == 25e9 / 8
