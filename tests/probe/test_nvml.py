"""The real pynvml, in a process of its own, on a C double of libnvidia-ml that reads a description of a machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stratadvisor.schema.profile import DeviceLink, DeviceProfile, NodeProfile, Observation

DOUBLE = Path(__file__).parents[1] / "nvml_double"
MIB = 1024**2
MACHINES = sorted(p.stem for p in (DOUBLE / "machines").glob("*.txt") if "hanging" not in p.stem)
LOOK = """
import json, sys
from pathlib import Path
from stratadvisor.probe import nvml
environ, root = json.loads(sys.argv[1])
devices, links, observations = nvml.collect(environ, Path(root), patience_seconds=250)
print(json.dumps([[x.model_dump(mode="json") for x in part] for part in (devices, links, observations)]))
"""


class Look(NamedTuple):
    devices: list[DeviceProfile]
    links: list[DeviceLink]
    observations: list[Observation]

    @property
    def reasons(self) -> str:
        return " | ".join(o.reason for o in self.observations)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the double of libnvidia-ml cannot be compiled")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-Wall", "-shared", "-fPIC", "-o", str(target), str(DOUBLE / "nvml_double.c")]
    subprocess.run(command, check=True, timeout=300)
    return folder


@pytest.fixture(scope="module")
def looks() -> dict[tuple[str | None, str], str]:
    return {}


@pytest.fixture
def look(library: Path, tmp_path: Path, looks: dict[tuple[str | None, str], str]) -> Callable[..., Look]:
    def run(
        machine: str | None, environ: dict[str, str] | None = None, root: Path | None = None, code: str = LOOK
    ) -> Look:
        key = (machine, json.dumps(environ or {}, sort_keys=True))
        text = looks.get(key) if root is None and code == LOOK else None  # the same question has the same answer
        if text is None:
            text = answer(machine, environ or {}, root if root is not None else tmp_path / "empty", code)
            if root is None and code == LOOK:
                looks[key] = text
        devices, links, observations = json.loads(text)
        return Look(
            [DeviceProfile.model_validate(x) for x in devices],
            [DeviceLink.model_validate(x) for x in links],
            [Observation.model_validate(x) for x in observations],
        )

    def answer(machine: str | None, environ: dict[str, str], root: Path, code: str) -> str:
        process_environ = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "NVML_DOUBLE_MACHINE")}
        if machine is None:  # an empty file stops the loader before it finds a library of this machine
            (tmp_path / "libnvidia-ml.so.1").touch()
            process_environ |= {"LD_LIBRARY_PATH": str(tmp_path)}
        else:
            process_environ |= {"NVML_DOUBLE_MACHINE": str(DOUBLE / "machines" / f"{machine}.txt")}
            process_environ |= {"LD_LIBRARY_PATH": str(library)}
        command = [sys.executable, "-c", code, json.dumps([environ, str(root)])]
        result = subprocess.run(command, env=process_environ, capture_output=True, text=True, check=False, timeout=300)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def files(root: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def proc_gpu(root: Path, bus_id: str, model: str, uuid: str) -> None:
    folder = root / "proc/driver/nvidia/gpus" / bus_id
    folder.mkdir(parents=True)
    text = f"Model: \t\t {model}\nIRQ:   \t\t 150\nGPU UUID: \t {uuid}\nBus Location: \t {bus_id}\n"
    (folder / "information").write_text(text)


def test_eight_h100_on_nvswitch(look: Callable[..., Look]) -> None:
    seen = look("h100x8_nvswitch")
    assert seen.observations == []
    assert [d.index for d in seen.devices] == list(range(8))
    first = seen.devices[0]
    assert (first.name, first.catalog_key) == ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM")
    assert first.compute_capability == (9, 0)
    assert (first.memory_total_bytes.value, first.memory_free_bytes.value) == (81559 * MIB, 81008 * MIB)
    assert first.memory_total_bytes.origin == "reported"
    assert (first.healthy, first.unified_memory, first.mig_enabled, first.virtual) == (True, False, False, False)
    assert (first.ecc_enabled, first.memory_users, first.pci_bus_id) == (True, (), "0000:1b:00.0")
    assert (first.pcie_generation_max, first.pcie_width_max) == (5, 16)
    assert (first.clock_sm_hertz.value, first.clock_sm_max_hertz.value) == (345e6, 1980e6)
    assert (first.power_limit_watts.value, first.temperature_celsius.value) == (700.0, 31.0)
    assert first.throttle_reasons == ("gpu_idle",)
    assert len(seen.links) == 8 * 7 // 2
    assert {(link.kind, link.num_links, link.peer_access) for link in seen.links} == {("nvswitch", 18, True)}
    assert {link.bandwidth_bytes_per_second.value for link in seen.links} == {18 * 26562e6}
    assert {link.bandwidth_bytes_per_second.origin for link in seen.links} == {"reported"}


def test_four_3090_with_one_bridge(look: Callable[..., Look]) -> None:
    seen = look("rtx3090x4_one_bridge")
    pairs = {(link.device_a, link.device_b): link for link in seen.links}
    assert len(pairs) == 6
    bridged = pairs.pop((2, 3))
    assert (bridged.kind, bridged.num_links, bridged.peer_access) == ("nvlink", 4, True)
    assert bridged.bandwidth_bytes_per_second.value == 4 * 14062e6
    assert {(x.kind, x.num_links, x.peer_access) for x in pairs.values()} == {("host_bridge", None, False)}
    assert all(not x.bandwidth_bytes_per_second.known for x in pairs.values())
    busy = seen.devices[1]
    assert (busy.memory_users[0].pid, busy.memory_users[0].name) == (4711, "python3")
    assert busy.memory_users[0].used_bytes.value == 15012 * MIB
    assert (busy.pcie_generation_current, busy.pcie_generation_max) == (1, 4)
    assert {d.ecc_enabled for d in seen.devices} == {None}  # a GeForce card has no ECC to be off
    assert {d.catalog_key for d in seen.devices} == {"RTX-3090"}


def test_mixed_a100_stand_in_the_order_of_the_bus_and_the_doubt_is_said(look: Callable[..., Look]) -> None:
    seen = look("a100_mixed")
    assert [d.pci_bus_id for d in seen.devices] == [f"0000:{bus}:00.0" for bus in ("21", "41", "81", "a1")]
    assert [d.catalog_key for d in seen.devices] == ["A100-40GB-PCIe"] * 2 + ["A100-80GB-PCIe"] * 2
    assert [d.memory_total_bytes.value for d in seen.devices] == [x * MIB for x in (40960, 40960, 81920, 81920)]
    assert [d.virtual for d in seen.devices] == [False] * 4  # passed through to a guest, but whole cards
    assert seen.devices[3].throttle_reasons == ("sw_thermal_slowdown", "hw_thermal_slowdown")
    assert seen.devices[1].ecc_enabled is False
    assert seen.devices[2].healthy is True
    assert "row remapping" in seen.devices[2].health_reason
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in seen.reasons
    assert look("a100_mixed", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).observations == []


def test_numbers_in_cuda_visible_devices_follow_the_bus(look: Callable[..., Look]) -> None:
    seen = look("a100_mixed", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3,0"})
    assert [(d.index, d.pci_bus_id) for d in seen.devices] == [(0, "0000:a1:00.0"), (1, "0000:21:00.0")]
    assert [(link.device_a, link.device_b) for link in seen.links] == [(0, 1)]
    assert "hidden by CUDA_VISIBLE_DEVICES" in seen.reasons


def test_a_number_among_unlike_cards_is_uncertain_and_a_uuid_is_not(look: Callable[..., Look]) -> None:
    by_number = look("a100_mixed", {"CUDA_VISIBLE_DEVICES": "0"})
    assert any(o.status == "unsupported" and "use UUIDs" in o.reason for o in by_number.observations)
    by_uuid = look("a100_mixed", {"CUDA_VISIBLE_DEVICES": "GPU-000000c0"})
    assert [d.pci_bus_id for d in by_uuid.devices] == ["0000:81:00.0"]
    assert "CUDA_DEVICE_ORDER" not in by_uuid.reasons


def test_an_invalid_entry_ends_the_list_and_is_named(look: Callable[..., Look]) -> None:
    seen = look("h100x8_nvswitch", {"CUDA_VISIBLE_DEVICES": "2,9,1"})
    assert [d.pci_bus_id for d in seen.devices] == ["0000:52:00.0"]
    assert [o.status for o in seen.observations] == ["failed"]
    assert "'9'" in seen.reasons


@pytest.mark.parametrize(("value", "words"), [("", "is empty"), ("NoDevFiles", "Slurm"), ("-1", "'-1'")])
def test_a_variable_that_hides_all_leaves_no_device_and_says_so(
    look: Callable[..., Look], value: str, words: str
) -> None:
    seen = look("h100x8_nvswitch", {"CUDA_VISIBLE_DEVICES": value})
    assert (seen.devices, seen.links) == ([], [])
    assert words in seen.reasons


def test_a_mig_slice_stands_for_its_card(look: Callable[..., Look]) -> None:
    seen = look("a100_mig")
    assert len(seen.devices) == 1
    device = seen.devices[0]
    assert device.memory_total_bytes.value == 40192 * MIB
    assert (device.mig_enabled, device.mig_profile, device.catalog_key) == (True, "3g.40gb", None)
    assert (device.healthy, device.compute_capability, device.unified_memory) == (True, (8, 0), False)
    assert device.uuid.startswith("MIG-000000d1")
    assert "one MIG slice" in seen.reasons
    assert "MIG-000000d2" in seen.reasons


def test_a_mig_slice_is_chosen_by_its_uuid(look: Callable[..., Look]) -> None:
    seen = look("a100_mig", {"CUDA_VISIBLE_DEVICES": "MIG-000000d2-1c0f-4a51-9d3e-0123456789d2"})
    assert [d.uuid for d in seen.devices] == ["MIG-000000d2-1c0f-4a51-9d3e-0123456789d2"]
    assert seen.devices[0].memory_free_bytes.value == 40148 * MIB
    assert seen.observations == []


def test_a_card_in_mig_mode_without_slices_cannot_be_used(look: Callable[..., Look]) -> None:
    seen = look("a100_mig_without_slices")
    assert [(d.healthy, d.mig_profile) for d in seen.devices] == [(False, "")]
    assert "no slice" in seen.reasons


def test_a_vgpu_is_virtual_and_what_it_hides_is_unknown(look: Callable[..., Look]) -> None:
    device = look("h100_vgpu").devices[0]
    assert (device.virtual, device.healthy, device.catalog_key) == (True, True, None)
    assert device.memory_total_bytes.value == 24576 * MIB
    assert device.compute_capability == (9, 0)
    assert (device.clock_sm_hertz.value, device.power_limit_watts.value) == (None, None)
    assert "Not Supported" in device.clock_sm_hertz.detail
    assert (device.pcie_generation_max, device.mig_enabled) == (None, None)


def test_a_card_without_a_handle_is_named_and_the_rest_is_complete(look: Callable[..., Look], tmp_path: Path) -> None:
    root = tmp_path / "root"
    for bus, last in (("18", "f0"), ("3b", "f1"), ("86", "f2"), ("af", "f3")):
        proc_gpu(root, f"0000:{bus}:00.0", "NVIDIA GeForce RTX 2080 Ti", f"GPU-000000{last}-1c0f")
    seen = look("rtx2080ti_dead_handle", root=root)
    dead, *living = seen.devices
    assert (dead.healthy, dead.name, dead.pci_bus_id) == (False, "NVIDIA GeForce RTX 2080 Ti", "0000:18:00.0")
    assert "lost" in dead.health_reason
    assert not dead.memory_total_bytes.known
    assert [(d.index, d.healthy) for d in living] == [(1, True), (2, True), (3, True)]
    assert {d.memory_total_bytes.value for d in living} == {11264 * MIB}
    assert [(link.device_a, link.device_b) for link in seen.links] == [(1, 2), (1, 3), (2, 3)]
    assert [o.status for o in seen.observations] == ["failed"]


def test_a_card_that_is_lost_after_its_handle_fails_alone(look: Callable[..., Look]) -> None:
    seen = look("a100_lost")
    assert [d.healthy for d in seen.devices] == [True, False, False]
    assert ["lost" in d.health_reason for d in seen.devices] == [False, True, True]
    assert seen.links == []


def test_driver_and_library_that_differ_are_the_cause_and_no_cpu_plan_follows(
    look: Callable[..., Look], tmp_path: Path
) -> None:
    version = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\nGCC version: 12\n"
    )
    root = files(tmp_path / "root", proc__driver__nvidia__version=version)
    proc_gpu(root, "0000:21:00.0", "NVIDIA A100-PCIE-40GB", "GPU-0000abcd-1c0f")
    seen = look("driver_mismatch", root=root)
    assert [o.status for o in seen.observations] == ["failed"]
    assert "1 NVIDIA GPU is in this machine" in seen.reasons
    assert "535.161.07" in seen.reasons
    assert "reboot" in seen.reasons
    assert [(d.name, d.healthy, d.catalog_key) for d in seen.devices] == [
        ("NVIDIA A100-PCIE-40GB", False, "A100-40GB-PCIe")
    ]


def test_devices_that_may_not_be_opened_are_denied(look: Callable[..., Look]) -> None:
    seen = look("no_permission")
    assert [o.status for o in seen.observations] == ["denied"]
    assert [d.healthy for d in seen.devices] == [False]


def test_shared_memory_is_the_hosts(look: Callable[..., Look], tmp_path: Path) -> None:
    text = "MemTotal:       127600748 kB\nMemFree:        1000 kB\nMemAvailable:   118566368 kB\n"
    seen = look("gb10_unified", root=files(tmp_path / "root", proc__meminfo=text))
    device = seen.devices[0]
    assert (device.unified_memory, device.healthy, device.catalog_key) == (True, True, "GB10")
    assert device.memory_total_bytes.value == 127600748 * 1024
    assert device.memory_free_bytes.value == 118566368 * 1024
    assert "host" in device.memory_total_bytes.detail
    assert device.pci_bus_id == "000f:01:00.0"
    assert device.power_limit_watts.value is None


def test_a_discrete_card_that_hides_its_memory_is_a_fault_and_not_shared(
    look: Callable[..., Look], tmp_path: Path
) -> None:
    root = files(tmp_path / "root", proc__meminfo="MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    seen = look("unknown_card_without_memory", root=root)
    device = seen.devices[0]
    assert (device.unified_memory, device.healthy, device.catalog_key) == (None, None, None)
    assert not device.memory_total_bytes.known
    assert [o.status for o in seen.observations] == ["failed"]


def test_a_fabric_that_is_not_up_and_a_prohibited_card_are_said(look: Callable[..., Look]) -> None:
    waiting, prohibited = look("h100_fabric_not_ready").devices
    assert (waiting.healthy, prohibited.healthy) == (None, False)
    assert "fabricmanager" in waiting.health_reason
    assert "prohibited" in prohibited.health_reason


def test_without_the_library_the_reason_depends_on_the_driver_and_the_bus(
    look: Callable[..., Look], tmp_path: Path
) -> None:
    nothing = look(None)
    assert [o.status for o in nothing.observations] == ["unsupported"]
    assert nothing.devices == []
    container = files(tmp_path / "container", sys__module__nvidia__version="550.54.15\n")
    in_container = look(None, root=container)
    assert [o.status for o in in_container.observations] == ["failed"]
    assert "--gpus all" in in_container.reasons
    folder = tmp_path / "bare/sys/bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    no_driver = look(None, root=tmp_path / "bare")
    assert no_driver.devices == []  # perhaps an old display card: it must not stand in the way of a plan for the CPU
    assert [o.status for o in no_driver.observations] == ["failed"]
    assert "driver is not loaded" in no_driver.reasons


def test_gpus_of_a_loaded_driver_without_library_are_listed_unless_hidden(
    look: Callable[..., Look], tmp_path: Path
) -> None:
    root = files(tmp_path / "root", sys__module__nvidia__version="550.54.15\n")
    proc_gpu(root, "0000:21:00.0", "NVIDIA A100-PCIE-40GB", "GPU-???????? ????")
    seen = look(None, root=root)
    assert [(d.healthy, d.uuid, d.pci_bus_id) for d in seen.devices] == [(False, "", "0000:21:00.0")]
    assert look(None, {"CUDA_VISIBLE_DEVICES": ""}, root).devices == []


def test_a_driver_that_grants_no_device_is_told_from_one_that_has_none(
    look: Callable[..., Look], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    proc_gpu(root, "0000:21:00.0", "NVIDIA A100-PCIE-40GB", "GPU-0000abcd-1c0f")
    granted = look("no_device", root=root)
    assert (granted.devices, [o.status for o in granted.observations]) == ([], ["denied"])
    assert "--gres" in granted.reasons
    assert [o.status for o in look("no_device").observations] == ["unsupported"]


def test_a_binding_that_is_not_nvidias_is_told(look: Callable[..., Look]) -> None:
    code = "import sys, types; sys.modules['pynvml'] = types.ModuleType('pynvml')\n" + LOOK
    assert "not NVIDIA's binding" in look(None, code=code).reasons
    missing = "import sys; sys.modules['pynvml'] = None\n" + LOOK
    assert [o.status for o in look(None, code=missing).observations] == ["unsupported"]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_survives_a_round_trip_as_a_node(look: Callable[..., Look], machine: str) -> None:
    seen = look(machine)
    node = NodeProfile(hostname="node", devices=tuple(seen.devices), links=tuple(seen.links))
    assert NodeProfile.model_validate_json(node.model_dump_json()) == node
    values: list[Any] = [d.memory_total_bytes.value for d in seen.devices]
    assert 0 not in values  # unknown is never zero


@pytest.mark.process
def test_a_gpu_that_hangs_takes_no_other_with_it(look: Callable[..., Look], tmp_path: Path) -> None:
    root = tmp_path / "root"
    for bus in ("18", "3b", "86", "af"):
        proc_gpu(root, f"0000:{bus}:00.0", "NVIDIA GeForce RTX 2080 Ti", f"GPU-000000{bus}-1c0f")
    code = LOOK.replace("patience_seconds=250", "patience_seconds=10")
    seen = look("rtx2080ti_hanging", root=root, code=code)
    assert [d.healthy for d in seen.devices] == [True, True, False, None]
    assert [d.pci_bus_id[5:7] for d in seen.devices] == ["18", "3b", "86", "af"]
    assert "in time" in seen.devices[2].health_reason
    assert "GPU 2 does not answer" in seen.devices[3].health_reason
    assert (seen.observations[0].status, seen.links) == ("timed_out", [])
