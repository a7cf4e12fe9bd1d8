from __future__ import annotations

from typing import Any

import pytest

from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.schema.base import reported
from stratadvisor.schema.profile import (
    CpuProfile,
    DeviceLink,
    DeviceProfile,
    HostMemoryProfile,
    MemoryUser,
    NicProfile,
    NodeProfile,
    SoftwareProfile,
    Verdict,
)

GIB = 1024**3


def gpu(index: int = 0, **changes: Any) -> DeviceProfile:
    """Return a healthy H100 with nothing to complain about."""
    fields: dict[str, Any] = {
        "index": index,
        "kind": "cuda",
        "name": "NVIDIA H100 80GB HBM3",
        "catalog_key": "H100-80GB-SXM",
        "uuid": f"GPU-{index}",
        "memory_total_bytes": reported(80 * GIB),
        "memory_free_bytes": reported(79.5 * GIB),
        "unified_memory": False,
        "ecc_enabled": True,
        "pcie_generation_max": 5,
        "pcie_generation_current": 5,
        "pcie_width_max": 16,
        "pcie_width_current": 16,
        "power_limit_watts": reported(700),
        "power_default_watts": reported(700),
        "healthy": True,
    }
    return DeviceProfile(**(fields | changes))


def node(*devices: DeviceProfile, **changes: Any) -> NodeProfile:
    fields: dict[str, Any] = {
        "hostname": "n1",
        "devices": devices,
        "cpu": CpuProfile(usable_cores=reported(64), logical_cpus=64),
        "host_memory": HostMemoryProfile(
            total_bytes=reported(512 * GIB),
            available_bytes=reported(500 * GIB),
            shared_memory_total_bytes=reported(256 * GIB),
        ),
    }
    return NodeProfile(**(fields | changes))


def told(found: NodeProfile) -> list[tuple[str, str]]:
    return [(v.level, v.message) for v in host_verdicts(found)]


def only(found: NodeProfile) -> Verdict:
    verdicts = host_verdicts(found)
    assert len(verdicts) == 1, verdicts
    return verdicts[0]


def test_a_sound_node_and_one_of_which_nothing_is_known_get_no_finding() -> None:
    assert told(node(gpu(0), gpu(1))) == []
    assert told(NodeProfile(hostname="n1")) == []


def test_an_idle_card_at_generation_1_is_a_note_and_a_busy_one_a_warning() -> None:
    idle = gpu(pcie_generation_current=1, throttle_reasons=("gpu_idle",))
    busy = gpu(pcie_generation_current=1, throttle_reasons=("sw_power_cap",))
    assert only(node(idle)).level == "info"
    assert [level for level, _ in told(node(busy))] == ["warning", "info"]


def test_slow_copies_are_told_even_though_the_idle_generation_proves_nothing() -> None:
    # Generation 5 over 16 lanes is 63 GB/s; 12 GB/s is what generation 3 gives.
    slow = gpu(
        pcie_generation_current=1, host_to_device_bytes_per_second=reported(12e9), throttle_reasons=("gpu_idle",)
    )
    good = gpu(pcie_generation_current=5, host_to_device_bytes_per_second=reported(50e9))
    assert only(node(slow)).level == "warning"
    assert "12 GB/s" in only(node(slow)).message
    assert told(node(good)) == []


def test_lost_lanes_are_a_warning() -> None:
    assert "8 of 16 lanes" in only(node(gpu(pcie_width_current=8))).message


def test_dead_cards_come_first_and_share_one_finding_per_reason() -> None:
    dead = [gpu(i, healthy=False, health_reason="the GPU is lost", pci_bus_id=f"0000:0{i}:00.0") for i in (0, 1)]
    verdicts = host_verdicts(node(*dead, gpu(2, ecc_enabled=False)))
    assert [v.level for v in verdicts] == ["problem", "info"]
    assert "0000:00:00.0" in verdicts[0].message
    assert "0000:01:00.0" in verdicts[0].message


def test_a_dead_card_is_not_compared_with_the_living() -> None:
    assert [level for level, _ in told(node(gpu(0, name="?", healthy=False), gpu(1)))] == ["problem"]


def test_remembered_memory_errors_are_a_warning() -> None:
    assert only(node(gpu(health_reason="a row remapping waits for a reset"))).level == "warning"


def test_memory_that_others_hold_is_told_with_its_holders() -> None:
    users = (MemoryUser(pid=4711, name="python3"),)
    verdict = only(node(gpu(memory_free_bytes=reported(60 * GIB), memory_users=users)))
    assert verdict.level == "warning"
    assert "20 GiB of 80 GiB" in verdict.message
    assert "4711 python3" in verdict.message
    unseen = only(node(gpu(memory_free_bytes=reported(60 * GIB))))
    assert "not visible from here" in unseen.message


@pytest.mark.parametrize(
    ("reason", "level"),
    [("hw_thermal_slowdown", "warning"), ("hw_power_brake_slowdown", "warning"), ("sw_power_cap", "info")],
)
def test_throttling(reason: str, level: str) -> None:
    assert only(node(gpu(throttle_reasons=(reason,)))).level == level


def test_a_lowered_power_limit_is_told_with_its_share_and_by_uuid() -> None:
    verdict = only(node(gpu(power_limit_watts=reported(500))))
    assert "71%" in verdict.message  # 500/700
    assert "-i GPU-0 -pl 700" in verdict.advice


def test_ecc_that_is_off_is_told_and_one_that_does_not_exist_is_not() -> None:
    assert "GPU 1" in only(node(gpu(0), gpu(1, ecc_enabled=False))).message
    assert told(node(gpu(ecc_enabled=None))) == []


def test_unlike_cards_on_a_node() -> None:
    small = gpu(1, memory_total_bytes=reported(40 * GIB), memory_free_bytes=reported(39.5 * GIB))
    verdict = only(node(gpu(0), small))
    assert verdict.level == "warning"
    assert "40 GiB and 80 GiB" in verdict.message
    assert "PCI_BUS_ID" in verdict.advice


def test_a_card_that_the_catalogue_lacks_is_said_to_be_unknown() -> None:
    assert "not in the catalogue" in only(node(gpu(name="NVIDIA Foo 9000", catalog_key=None))).message


def test_slices_virtual_and_shared_memory_devices_are_explained() -> None:
    assert "MIG slice (3g.40gb)" in only(node(gpu(mig_enabled=True, mig_profile="3g.40gb"))).message
    assert "virtual GPU" in only(node(gpu(virtual=True))).message
    assert "shares the host's memory" in only(node(gpu(unified_memory=True))).message


@pytest.mark.parametrize(("driver", "count"), [("525.85.05", 1), ("550.40.06", 1), ("550.40.07", 0), ("570.124.06", 0)])
def test_4090_pairs_under_a_driver_whose_peer_access_is_broken(driver: str, count: int) -> None:
    cards = [gpu(i, name="NVIDIA GeForce RTX 4090", catalog_key="RTX-4090") for i in range(2)]
    found = told(node(*cards, software=SoftwareProfile(versions={"driver": driver})))
    assert [level for level, _ in found] == ["problem"] * count


def test_a_partly_linked_node_names_the_linked_pairs() -> None:
    links = [
        DeviceLink(device_a=a, device_b=b, kind="host_bridge", peer_access=False) for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    links[2] = DeviceLink(device_a=1, device_b=2, kind="nvlink", num_links=4, peer_access=True)
    found = told(node(gpu(0), gpu(1), gpu(2), links=tuple(links)))
    assert [level for level, _ in found] == ["info", "info"]
    assert "1 of 3 GPU pairs have NVLink (1-2)" in found[0][1]
    assert "2 of 3 GPU pairs cannot reach" in found[1][1]


def test_switch_links_that_are_down_are_a_warning() -> None:
    links = [
        DeviceLink(device_a=0, device_b=1, kind="nvswitch", num_links=18),
        DeviceLink(device_a=0, device_b=2, kind="nvswitch", num_links=16),
        DeviceLink(device_a=1, device_b=2, kind="nvswitch", num_links=16),
    ]
    assert "16 to 18" in only(node(gpu(0), gpu(1), gpu(2), links=tuple(links))).message


def test_the_default_shared_memory_of_a_container_is_too_small_for_four_gpus() -> None:
    memory = HostMemoryProfile(shared_memory_total_bytes=reported(64 * 2**20))
    verdict = only(node(*(gpu(i) for i in range(4)), host_memory=memory))
    assert verdict.level == "warning"
    assert "64 MiB" in verdict.message
    assert "4 GiB" in verdict.message
    assert "--shm-size" in verdict.advice


def test_one_core_of_an_srun_step_is_told_with_the_missing_flag() -> None:
    cpu = CpuProfile(
        usable_cores=reported(1, "online 64, affinity 1, slurm 12"), limited_by="affinity", logical_cpus=64
    )
    verdict = only(node(gpu(), cpu=cpu))
    assert verdict.level == "warning"
    assert "--cpus-per-task" in verdict.advice


def test_limits_on_cores_and_memory_are_notes() -> None:
    cpu = CpuProfile(usable_cores=reported(16), limited_by="cgroup v2", logical_cpus=64)
    memory = HostMemoryProfile(total_bytes=reported(512 * GIB), limit_bytes=reported(90 * GIB), limited_by="cgroup v2")
    found = told(node(gpu(), cpu=cpu, host_memory=memory))
    assert [level for level, _ in found] == ["info", "info"]
    assert "16 of 64" in found[0][1]
    assert "90 GiB of 512 GiB" in found[1][1]


def test_rdma_that_a_container_cannot_open_and_too_little_locked_memory() -> None:
    nic = NicProfile(name="ib0", kind="infiniband", up=True, rdma_device="mlx5_0", rdma_usable=False)
    memory = HostMemoryProfile(memlock_bytes=reported(65536))
    found = host_verdicts(node(gpu(), nics=(nic,), host_memory=memory))
    assert [v.level for v in found] == ["warning", "warning"]
    assert "plain sockets" in found[0].message
    assert "64 KiB" in found[1].message
    without = NicProfile(name="eth0", kind="ethernet", up=True)
    assert told(node(gpu(), nics=(without,), host_memory=memory)) == []


def test_every_finding_names_its_node() -> None:
    found = host_verdicts(node(gpu(healthy=False, health_reason="x"), gpu(1, ecc_enabled=False)))
    assert all(v.subject.startswith("n1 ") for v in found)
