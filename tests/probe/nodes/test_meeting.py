"""Where nodes meet, and which interface carries what."""

import socket
from pathlib import Path

import pytest

from stratadvisor.errors import ProbeError
from stratadvisor.probe.nodes import counters
from stratadvisor.probe.nodes.meeting import (
    first_real,
    interface_of,
    is_loopback,
    listen_on,
    listening_address,
    name_is_loopback,
    wished_interface,
)
from stratadvisor.schema.profile import NicProfile

REAL = NicProfile(name="eth9", kind="ethernet", up=True, addresses=("10.9.0.1",))
DOWN = NicProfile(name="eth8", kind="ethernet", up=False, addresses=("10.8.0.1",))
BRIDGE = NicProfile(name="docker0", kind="virtual", up=True, addresses=("172.17.0.1",))
LOOPBACK = NicProfile(name="lo", kind="loopback", addresses=("127.0.0.1",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 node3.site node3 # installer\n", True),
        ("127.0.0.1 localhost\n10.0.0.3 node3\n127.0.1.1 node3\n", False),  # the first line counts
        ("# 127.0.1.1 node3\n", False),
        ("", False),
    ],
)
def test_a_name_on_the_loopback_in_etc_hosts(tmp_path: Path, text: str, expected: bool) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text(text)
    assert name_is_loopback("node3", tmp_path) is expected
    assert name_is_loopback("node3", tmp_path / "nothing here") is False


def test_a_real_interface_goes_before_a_bridge_and_the_loopback_is_none() -> None:
    assert first_real((LOOPBACK, BRIDGE, DOWN, REAL)) == "10.9.0.1"
    assert first_real((LOOPBACK, BRIDGE, DOWN)) == "172.17.0.1"
    assert first_real((LOOPBACK,)) == ""


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, ""),
        ({"NCCL_SOCKET_IFNAME": "=ib0"}, "ib0"),
        ({"NCCL_SOCKET_IFNAME": "^docker0,lo"}, ""),
        ({"NCCL_SOCKET_IFNAME": "eth0,eth1"}, ""),
        ({"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "ib0"}, "eth1"),
    ],
)
def test_the_interface_that_a_user_names(environ: dict[str, str], name: str) -> None:
    assert wished_interface(environ) == name


def test_the_first_node_listens_where_it_is_reached() -> None:
    assert listening_address("127.0.0.1", 1, (REAL,)) == "127.0.0.1"
    assert is_loopback(listening_address("localhost", 1, (REAL,)))
    assert listening_address("no-such-host.invalid", 1, (LOOPBACK, REAL)) == "10.9.0.1"
    # 192.0.2.0/24 is for documentation (RFC 5737): no host of ours has it, as with a service address
    assert listening_address("192.0.2.7", 1, (REAL,)) == ""


def test_a_port_in_use_is_a_sentence() -> None:
    with listen_on("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            ProbeError, match=f"cannot meet at port {port} of 127.0.0.1: Address already in use"
        ) as caught:
            listen_on("127.0.0.1", port)
        assert "MASTER_PORT" in caught.value.hint


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("10.9.0.1", {"lo": ("127.0.0.1",), "eth9": ("10.9.0.1",)}) == "eth9"
    assert interface_of("10.9.0.2", {"eth9": ("10.9.0.1",)}) == ""


def test_the_interface_whose_counters_moved_carried_the_transfer(tmp_path: Path) -> None:
    before = {"lo": 10, "eth0": 100, "bond0": 100, "idle": 5}
    after = {"lo": 20, "eth0": 1_000_100, "bond0": 1_000_100, "idle": 5, "new": 3}
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    assert counters.carrier(before, after, 900_000, "bond0", tmp_path) == "eth0"
    assert counters.carrier(before, after, 900_000, "bond0", tmp_path / "no hardware known") == "bond0"
    assert counters.carrier(before, after, 10_000_000, "eth0", tmp_path) == ""


def test_counters_and_stated_rates_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    heading = "Inter-|   Receive                                                |  Transmit\n face |bytes ...\n"
    lines = "    lo:  70 1 0 0 0 0 0 0  70 1 0 0 0 0 0 0\n  eth0:1000 9 0 0 0 0 0 0 234 5 0 0 0 0 0 0\n broken: 1\n"
    (tmp_path / "proc/net/dev").write_text(heading + lines)
    assert counters.byte_counters(tmp_path) == {"lo": 140, "eth0": 1234}
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/speed").write_text("10000\n")
    assert counters.stated_rate("eth0", tmp_path) == 10e9 / 8
    (tmp_path / "sys/class/net/eth0/speed").write_text("-1\n")
    assert counters.stated_rate("eth0", tmp_path) is None


def test_traffic_inside_this_machine_is_seen_on_the_loopback() -> None:
    before = counters.byte_counters()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            near.sendall(b"x" * 100_000)
            received = 0
            while received < 100_000:
                received += len(far.recv(65536))
    assert counters.byte_counters()["lo"] - before["lo"] >= 100_000
