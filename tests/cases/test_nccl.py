"""Cases O-25 to O-27: interfaces, names and peer access."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_support import BRIDGE, LOOPBACK, card, cluster_of, files_of, nic, node, plan_for

from stratadvisor.catalog import devices
from stratadvisor.derive.cluster import planning_cluster
from stratadvisor.probe.own_name import own_name

A100 = "NVIDIA A100-SXM4-80GB"


def pair(first, second, model: str = A100, mib: float = 81920, **more):
    return cluster_of(
        node("one", [card(model, i, mib) for i in range(2)], nics=first, **more),
        node("two", [card(model, i, mib) for i in range(2)], nics=second, **more),
    )


def test_o25() -> None:
    """eno1 here, eth0 there: both listed, never the loopback, never a bridge of containers."""
    where = pair((nic("eno1"), LOOPBACK), (nic("eth0", address="10.0.0.12"), BRIDGE, LOOPBACK))
    plan = plan_for(where, "1B", strategy="ddp")
    assert plan.environment["NCCL_SOCKET_IFNAME"] == "eno1,eth0"
    launcher = files_of(plan, where)["launch.sh"]
    assert "for name in eno1 eth0; do" in launcher
    assert 'set_default GLOO_SOCKET_IFNAME "$name"' in launcher
    assert "docker0" not in launcher
    assert "if ((nodes > 1)) && [[ ${!name:-} == lo ]]" in launcher  # a user's own lo is told


def test_o26(tmp_path: Path) -> None:
    """The name leads to 127.0.1.1: the address of the interface is what peers are given."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n127.0.1.1 one.lan one\n10.0.0.12 two\n")
    (told,) = own_name(tmp_path, "one", (LOOPBACK, nic("eth0")))
    assert "127.0.1.1" in told.message
    assert "10.0.0.11" in told.advice
    assert "GLOO_SOCKET_IFNAME=eth0" in told.advice
    assert not list(own_name(tmp_path, "two", (nic("eth0"),)))
    where = pair((nic("eth0"), LOOPBACK), (nic("eth0", address="10.0.0.12"), LOOPBACK))
    plan = plan_for(where, "1B", strategy="ddp")
    assert plan.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert 'master="${master:-10.0.0.11}"' in files_of(plan, where)["launch.sh"]


@pytest.mark.parametrize(("driver", "broken"), [("525.85.05", True), ("570.124.06", False)])
def test_o27(driver: str, broken: bool) -> None:
    """RTX 4090 under an old driver: peer access is switched off and planned through host memory; else left alone."""
    name = "NVIDIA GeForce RTX 4090"
    where = cluster_of(node("box", [card(name, i, 24564) for i in range(2)], versions={"driver": driver}))
    plan = plan_for(where, "1B", strategy="zero2")
    assert plan.environment.get("NCCL_P2P_DISABLE") == ("1" if broken else None)
    link = devices.lookup(name).host_link_bytes_per_second
    rate = planning_cluster(where).classes[0].intra_node_bytes_per_second
    other = planning_cluster(
        cluster_of(node("box", [card(name, i, 24564) for i in range(2)], versions={"driver": "570.124.06"}))
    )
    assert rate < link
    assert rate == other.classes[0].intra_node_bytes_per_second / (2 if broken else 1)
    program = files_of(plan, where)["stratadvisor_runtime/distributed.py"]
    assert "check_exchange(device, rank, world_size)" in program  # wrong sums end the run before training
