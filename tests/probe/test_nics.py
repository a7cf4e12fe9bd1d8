from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from probe_trees import plant

from stratadvisor.probe import nics
from stratadvisor.probe.outcome import UnsupportedHereError
from stratadvisor.schema.profile import NicProfile

HCA = "sys/devices/pci0000:80/0000:81:00.0"


def by_name(found: tuple[NicProfile, ...]) -> dict[str, NicProfile]:
    return {nic.name: nic for nic in found}


def interface(name: str, speed: str | None, *, kind: int = 1, state: str = "up", device: str = "") -> dict[str, str]:
    """Return the files of an interface: with hardware behind it, or among the virtual ones."""
    home = f"{device}/net/{name}" if device else f"sys/devices/virtual/net/{name}"
    files = {f"{home}/type": f"{kind}\n", f"{home}/operstate": f"{state}\n"}
    files[f"sys/class/net/{name}"] = f"-> ../../../{home}"
    if speed is not None:
        files[f"{home}/speed"] = f"{speed}\n"
    if device:
        files[f"{home}/device"] = "-> ../../../" + device.rsplit("/", 1)[-1]
    return files


def device(path: str, driver: str, numa: int = 0) -> dict[str, str]:
    return {f"{path}/driver": f"-> ../../../bus/pci/drivers/{driver}", f"{path}/numa_node": f"{numa}\n"}


def test_a_plain_card_reports_its_rate_and_where_it_sits(tmp_path: Path) -> None:
    pci = "sys/devices/pci0000:00/0000:01:00.0"
    files = interface("eno1", "25000", device=pci) | device(pci, "ixgbe", 1)
    found = by_name(nics.collect(plant(tmp_path, files), {"eno1": ("10.0.0.11",)}))["eno1"]
    assert found.rate_bytes_per_second.value == 25e9 / 8
    assert found.rate_bytes_per_second.origin == "reported"
    assert (found.kind, found.up, found.addresses) == ("ethernet", True, ("10.0.0.11",))
    assert (found.driver, found.numa_node, found.rdma_device, found.rdma_usable) == ("ixgbe", 1, "", None)


def test_a_cloud_card_that_states_no_speed_is_unknown_and_not_negative(tmp_path: Path) -> None:
    pci = "sys/devices/pci0000:00/0000:00:03.0"
    files = interface("eth0", "-1", device=pci) | device(pci, "virtio_net", -1)
    found = by_name(nics.collect(plant(tmp_path, files), {}))["eth0"]
    assert (found.kind, found.rate_bytes_per_second.value, found.numa_node) == ("ethernet", None, None)


def test_bridges_and_veth_pairs_are_virtual_whatever_speed_they_state(tmp_path: Path) -> None:
    files = interface("docker0", "10000", state="down") | interface("veth12ab", "10000") | interface("br-9", None)
    files |= interface("lo", None, kind=772, state="unknown")
    found = by_name(nics.collect(plant(tmp_path, files), {}))
    assert {name: nic.kind for name, nic in found.items()} == {
        "docker0": "virtual",
        "veth12ab": "virtual",
        "br-9": "virtual",
        "lo": "loopback",
    }
    assert {nic.rate_bytes_per_second.value for nic in found.values()} == {None}
    assert (found["docker0"].up, found["veth12ab"].up) == (False, True)


def test_a_bond_stands_for_its_members(tmp_path: Path) -> None:
    files = interface("bond0", "200000") | {"sys/devices/virtual/net/bond0/bonding/slaves": "eno1 eno2\n"}
    files |= {"sys/class/net/bonding_masters": "bond0\n"}
    found = nics.collect(plant(tmp_path, files), {})
    assert [(nic.name, nic.kind, nic.rate_bytes_per_second.value) for nic in found] == [("bond0", "ethernet", 25e9)]


def infiniband(
    layer: str = "InfiniBand", rate: str = "200 Gb/sec (4X HDR)", state: str = "4: ACTIVE"
) -> dict[str, str]:
    port = f"{HCA}/infiniband/mlx5_0/ports/1"
    return {
        f"{port}/rate": f"{rate}\n",
        f"{port}/state": f"{state}\n",
        f"{port}/link_layer": f"{layer}\n",
        f"{HCA}/infiniband/mlx5_0/device": "-> ../..",
        "sys/class/infiniband/mlx5_0": f"-> ../../../{HCA}/infiniband/mlx5_0",
    }


def test_infiniband_with_and_without_an_ip_interface(tmp_path: Path) -> None:
    files = infiniband() | device(HCA, "mlx5_core", 1) | {"dev/infiniband/uverbs0": ""}
    bare = nics.collect(plant(tmp_path / "bare", files), {})
    assert [(n.name, n.kind, n.up, n.rdma_usable, n.numa_node) for n in bare] == [
        ("mlx5_0", "infiniband", True, True, 1)
    ]
    assert bare[0].rate_bytes_per_second.value == 25e9
    assert "HDR" in bare[0].rate_bytes_per_second.detail
    with_ip = nics.collect(plant(tmp_path / "ip", files | interface("ib0", None, kind=32, device=HCA)), {})
    assert [(n.name, n.kind, n.rdma_device, n.rate_bytes_per_second.value) for n in with_ip] == [
        ("ib0", "infiniband", "mlx5_0", 25e9)
    ]


def test_roce_and_a_container_without_its_device_files(tmp_path: Path) -> None:
    files = infiniband("Ethernet", "100 Gb/sec (4X EDR)") | interface("ens1f0", "100000", device=HCA)
    found = nics.collect(plant(tmp_path, files), {})
    assert [(n.name, n.kind, n.rdma_usable) for n in found] == [("ens1f0", "roce", False)]


def test_efa_has_no_interface_of_its_own(tmp_path: Path) -> None:
    files = infiniband("Unspecified", "100 Gb/sec (4X EDR)") | device(HCA, "efa")
    assert [n.kind for n in nics.collect(plant(tmp_path, files), {})] == ["efa"]


def test_a_port_without_link_is_down_and_its_nonsense_rate_is_unknown(tmp_path: Path) -> None:
    found = nics.collect(plant(tmp_path, infiniband(rate="0 Gb/sec", state="1: DOWN")), {})[0]
    assert (found.up, found.rate_bytes_per_second.value) == (False, None)


def test_interfaces_that_nothing_describes_are_unknown_and_not_none(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHereError, match="/sys/class/net"):
        nics.collect(tmp_path, {"eth0": ("192.0.2.2",)})


def test_an_empty_root_has_no_interfaces(tmp_path: Path) -> None:
    assert nics.collect(tmp_path) == ()


def test_on_this_machine_every_interface_is_there_with_its_addresses() -> None:
    found = by_name(nics.collect())
    assert {p.name for p in Path("/sys/class/net").iterdir() if p.is_dir()} <= set(found)
    assert found["lo"].kind == "loopback"
    for name, entries in psutil.net_if_addrs().items():
        expected = {e.address.partition("%")[0] for e in entries if e.family.name in ("AF_INET", "AF_INET6")}
        if name in found:
            assert set(found[name].addresses) == expected


def test_a_real_veth_pair_states_a_speed_that_means_nothing() -> None:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip", "mount"))):
        pytest.skip("making a network namespace takes root and iproute2")
    look = "from stratadvisor.probe import nics; print(*[n.model_dump_json() for n in nics.collect()], sep='\\n')"
    steps = (
        "mount -t sysfs sysfs /sys && ip link add eth7 type veth peer name peer7 && ip addr add 10.99.0.1/24 dev eth7"
        ' && ip link set peer7 up && ip link set eth7 up && cat /sys/class/net/eth7/speed && exec "$@"'
    )
    command = ["unshare", "--net", "--mount", "sh", "-c", steps, "sh", sys.executable, "-c", look]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if result.returncode != 0 and "Traceback" not in result.stderr:
        pytest.skip(f"this machine does not let us make a veth pair: {result.stderr.strip()[:200]}")
    assert result.returncode == 0, result.stderr
    speed, *lines = result.stdout.splitlines()
    assert int(speed) > 0  # the kernel states one, whatever the pair can do
    found = by_name(tuple(NicProfile.model_validate_json(line) for line in lines))
    assert (found["eth7"].kind, found["eth7"].up, found["eth7"].rate_bytes_per_second.value) == ("virtual", True, None)
    assert "10.99.0.1" in found["eth7"].addresses
