"""Cases O-28 to O-39: what the machine says about itself, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_nvml import Look, look
from case_support import GIB, MIB, card, cluster_of, declare, files_of, node, plan_for
from probe_trees import V2_MOUNT, meminfo, plant, processors

from stratadvisor.catalog import devices
from stratadvisor.errors import NoFeasiblePlanError, ProfileError
from stratadvisor.probe import host_cpu, host_memory, rocm
from stratadvisor.probe.verdicts import host_verdicts
from stratadvisor.schema.base import reported
from stratadvisor.schema.profile import HostMemoryProfile

CARD = """driver 550.90.07
device
  name {name}
  uuid GPU-000000a0-1c0f-4a51-9d3e-0123456789a0
  bus 00000000:07:00.0
  memory_mib {memory}
  compute_capability {capability}
  mig {mig}
  virtualization {virtualization}
  compute_mode 0
"""
SLICE = """slice
  name {name}
  uuid MIG-{uuid}
  memory_mib {memory}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


@pytest.fixture
def see(folder: Path, tmp_path: Path):
    def run(machine: str, environ: dict[str, str] | None = None, root: Path | None = None) -> Look:
        return look(machine, folder, root or tmp_path / "empty", environ)

    return run


def a100_in_slices(*slices: str) -> str:
    return CARD.format(
        name="NVIDIA A100-SXM4-40GB", memory="!4", capability="8 0", mig="1 1", virtualization=0
    ) + "".join(slices)


def test_o28(see) -> None:
    """The card refuses to tell its memory, its slice has 4864 MiB: that is the device."""
    seen = see(a100_in_slices(SLICE.format(name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", uuid="1-2-3", memory="4864 4860")))
    (device,) = seen.devices
    assert device.memory_total_bytes.value == 4864 * MIB
    assert device.memory_free_bytes.value == 4860 * MIB
    plan = plan_for(cluster_of(node("n", seen.devices)), "60M")
    assert plan.groups[0].memory_available_bytes <= 4.75 * GIB
    with pytest.raises(NoFeasiblePlanError):
        plan_for(cluster_of(node("n", seen.devices, host_gib=4)), "1B")  # 16 GB of states


def test_o29(see) -> None:
    """A vGPU hides its clocks: unknown, not a crash; Hopper, 24576 MiB, virtual, and never two of them together."""
    machine = CARD.format(
        name="NVIDIA H100L-2-24C", memory="24576 24050", capability="9 0", mig="!3", virtualization=2
    ) + ("  clock_mhz !3\n")
    (device,) = see(machine).devices
    assert device.memory_total_bytes.value == 24576 * MIB
    assert device.compute_capability[0] == 9
    assert device.virtual is True
    assert not device.clock_sm_hertz.known
    assert plan_for(cluster_of(node("n", [device])), "350M").parallelism.world_size == 1
    assert any("virtual GPU" in v.message for v in host_verdicts(node("n", [device])))


def test_o30(see, tmp_path: Path) -> None:
    """GB10 shares the host's memory, a discrete card that hides its own is at fault."""
    root = plant(tmp_path / "root", meminfo(127600748, 118566368))
    machine = (
        CARD.format(name="NVIDIA GB10", memory="!3", capability="12 1", mig="!3", virtualization=0) + "  addressing 2\n"
    )
    (device,) = see(machine, root=root).devices
    assert device.unified_memory is True
    assert device.memory_total_bytes.value / GIB == pytest.approx(121.7, abs=0.05)
    assert device.memory_free_bytes.value / GIB == pytest.approx(113, abs=0.1)
    discrete = CARD.format(name="NVIDIA Foo 9000", memory="!3", capability="9 0", mig="!3", virtualization=0)
    seen = see(discrete, root=root)
    assert not seen.devices[0].memory_total_bytes.known
    assert "failed" in [o.status for o in seen.observations]


def test_o31(see) -> None:
    """CUDA_VISIBLE_DEVICES with the UUID of a slice: one device, and the text stays what it is."""
    uuid = "11111111-2222-3333-4444-555555555555"
    machine = CARD.format(
        name="NVIDIA H100 80GB HBM3", memory="81559 100", capability="9 0", mig="1 1", virtualization=0
    )
    machine += SLICE.format(name="NVIDIA H100 80GB HBM3 MIG 2g.20gb", uuid=uuid, memory="20096 20000")
    (device,) = see(machine, {"CUDA_VISIBLE_DEVICES": f"MIG-{uuid}"}).devices
    assert device.uuid == f"MIG-{uuid}"
    assert device.mig_profile == "2g.20gb"
    assert 18 < device.memory_total_bytes.value / GIB < 21
    where = cluster_of(node("n", [device]))
    plan = plan_for(where, "350M")
    assert plan.parallelism.world_size == 1
    launcher = files_of(plan, where)["launch.sh"]
    assert "CUDA_VISIBLE_DEVICES=" not in launcher  # the user's value passes through, unparsed
    assert "CUDA_VISIBLE_DEVICES" not in plan.environment


def test_o32(see) -> None:
    """Two slices are not two GPUs: a process sees one, and NCCL has no way between them."""
    slices = [
        SLICE.format(name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", uuid=f"{i}-2-3", memory="40192 40155") for i in (1, 2)
    ]
    seen = see(a100_in_slices(*slices))
    (device,) = seen.devices
    assert device.memory_total_bytes.value / GIB == pytest.approx(39.25)
    assert "slices cannot train together" in seen.reasons
    assert "MIG-2-2-3" in seen.reasons  # for a run of its own
    plan = plan_for(cluster_of(node("n", seen.devices)), "350M")
    assert (plan.parallelism.world_size, plan.strategy) == (1, "single")


@pytest.mark.parametrize(("quota", "cores", "workers"), [("200000", 2.0, 1), ("50000", 0.5, 0)])
def test_o33(tmp_path: Path, quota: str, cores: float, workers: int) -> None:
    """64 processors, a quota of 2 (or half): that many threads and loader processes."""
    files = processors(64) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
    }
    found = host_cpu.collect(plant(tmp_path, files), {})
    assert found.usable_cores.value == cores == int(quota) / 100000
    host = node("n", [card("NVIDIA A10", 0, 23028)], cores=found.usable_cores.value)
    plan = plan_for(cluster_of(host), "350M")
    assert plan.data_loader_workers <= workers
    offloaded = plan_for(cluster_of(host), "1.5B")
    assert offloaded.environment["OMP_NUM_THREADS"] == str(max(1, int(cores)))


def test_o34(tmp_path: Path) -> None:
    """A container of 90 GiB on a host of 1007: 13B of optimizer states (145 GiB) do not go there."""
    files = meminfo(1056450248, 880000000) | {
        "proc/self/mountinfo": V2_MOUNT,
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "96636764160\n",
        "sys/fs/cgroup/memory.current": f"{10 * GIB}\n",
    }
    found = host_memory.collect(plant(tmp_path, files), {}, size_of=lambda _: (64 * GIB, 64 * GIB))
    assert found.limit_bytes.value == 90 * GIB
    assert found.available_bytes.value == 80 * GIB
    host = node("n", [card("NVIDIA A100-SXM4-80GB", 0, 81920)]).model_copy(update={"host_memory": found})
    assert 90 * GIB < 12 * 13.0e9
    with pytest.raises(NoFeasiblePlanError, match="80 GiB host memory"):
        plan_for(cluster_of(host), "13B")
    assert 0.9 * 80 * GIB < 12 * 6.74e9  # 75 GiB bare: with buffers it is beyond what is left
    with pytest.raises(NoFeasiblePlanError, match="80 GiB host memory"):
        plan_for(cluster_of(host), "7B")


def test_o35() -> None:
    """/dev/shm of 64 MiB: told with what is normal, no loader processes, and a volume where pods are started."""
    memory = HostMemoryProfile(
        total_bytes=reported(256.0 * GIB),
        available_bytes=reported(256.0 * GIB),
        shared_memory_total_bytes=reported(64.0 * MIB),
        shared_memory_free_bytes=reported(64.0 * MIB),
    )
    host = node("n", [card("NVIDIA A10", i, 23028) for i in range(4)]).model_copy(update={"host_memory": memory})
    (told,) = [v for v in host_verdicts(host) if v.subject.endswith("/dev/shm")]
    assert "64 MiB" in told.message
    assert f"{4} GiB or more" in told.message  # one for each device
    assert "--shm-size" in told.advice
    where = cluster_of(host)
    plan = plan_for(where, "350M", strategy="ddp")
    assert plan.data_loader_workers == 0
    pods = files_of(plan, where, beside=("kubeflow",))
    manifest = next(text for path, text in pods.items() if path.endswith("trainjob.yaml"))
    assert "mountPath: /dev/shm" in manifest
    assert "medium: Memory" in manifest


def test_o36(see, tmp_path: Path) -> None:
    """One of four is dead: three train, named by UUID, and nothing counts to four."""
    root = tmp_path / "root"
    for bus, last in (("18", "f0"), ("3b", "f1"), ("86", "f2"), ("af", "f3")):
        information = root / f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"
        information.parent.mkdir(parents=True)
        information.write_text(f"Model: \t\t NVIDIA GeForce RTX 2080 Ti\nGPU UUID: \t GPU-000000{last}-1c0f\n")
    seen = see("rtx2080ti_dead_handle", root=root)
    assert [(d.index, d.healthy) for d in seen.devices] == [(0, False), (1, True), (2, True), (3, True)]
    where = cluster_of(node("box", seen.devices))
    plan = plan_for(where, "110M", strategy="ddp")
    assert plan.parallelism.world_size == 3
    assert any("left out" in w for w in plan.warnings)
    living = ",".join(d.uuid for d in seen.devices[1:])
    assert f"set_default CUDA_VISIBLE_DEVICES {living} ;;" in files_of(plan, where)["launch.sh"]


def test_o37(see, tmp_path: Path) -> None:
    """Library and kernel module differ after an upgrade: GPUs exist, the cause is said, and no CPU plan follows."""
    root = tmp_path / "root"
    version = root / "proc/driver/nvidia/version"
    information = root / "proc/driver/nvidia/gpus/0000:21:00.0/information"
    information.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n")
    information.write_text("Model: \t\t NVIDIA A100-PCIE-40GB\nGPU UUID: \t GPU-0000abcd-1c0f\n")
    seen = see("driver_mismatch", root=root)
    assert "1 NVIDIA GPU is in this machine" in seen.reasons
    assert "reboot" in seen.reasons
    with pytest.raises(ProfileError, match="no usable device") as refused:
        plan_for(cluster_of(node("n", seen.devices)), "350M")
    assert refused.value.exit_code != 0


def test_o38(tmp_path: Path) -> None:
    """An AMD host on which NVIDIA's Python package is installed: AMD, read without NVML, and no NVIDIA advice."""
    import pynvml  # noqa: F401 - it is there, and must not matter

    kfd, pci = "sys/class/kfd/kfd/topology/nodes", "sys/bus/pci/devices/0000:05:00.0"
    files = {
        f"{kfd}/0/properties": "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\n",
        f"{kfd}/1/properties": "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\nvendor_id 4098\n"
        f"location_id {5 << 8}\ndomain 0\nunique_id 1\n",
        f"{kfd}/1/name": "aqua_vanjaram\n",
        f"{pci}/mem_info_vram_total": f"{192 * GIB}\n",
        f"{pci}/mem_info_vram_used": f"{2 * GIB}\n",
        f"{pci}/product_name": "AMD Instinct MI300X\n",
    }
    root = plant(tmp_path, files | meminfo(2**30, 2**29))
    (device,), _, _ = rocm.collect(root, {})
    assert (device.kind, device.catalog_key) == ("rocm", "MI300X")
    assert rocm.collect(root, {"HIP_VISIBLE_DEVICES": ""})[0] == ()
    host = node("n", [device], versions={"hip": "6.1", "torch": "2.13.0"})
    plan = plan_for(cluster_of(host), "1B")
    assert plan.device_kind == "rocm"
    assert not [name for name in plan.environment if name.startswith(("CUDA_", "NCCL_P2P"))]


NAMES = (
    ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM", (8, 0)),
    ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe", (8, 0)),
    ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe", (8, 0)),
    ("Tesla V100-SXM2-32GB", "V100-32GB-SXM", (7, 0)),
    ("Tesla V100-DGXS-32GB", None, (7, 0)),
    ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM", (9, 0)),
    ("NVIDIA H100 PCIe", "H100-80GB-PCIe", (9, 0)),
    ("NVIDIA A10G", "A10G", (8, 6)),
    ("NVIDIA L4", "L4", (8, 9)),
    ("NVIDIA GeForce RTX 3090", "RTX-3090", (8, 6)),
    ("Tesla T4", "T4", (7, 5)),
    ("NVIDIA RTX 6000 Ada Generation", None, (8, 9)),
)


def test_o39(see) -> None:
    """Fourteen real names: each its own card, a slice no card, an unknown name nobody."""
    for name, key, capability in NAMES:
        found = devices.lookup(name)
        assert found is not None, name
        assert found.compute_capability == capability, name
        assert key is None or found.key == key
    sxm, pcie = devices.lookup("NVIDIA H100 80GB HBM3"), devices.lookup("NVIDIA H100 PCIe")
    assert sxm.peak_flops_per_second["bf16"] > pcie.peak_flops_per_second["bf16"]
    assert devices.lookup("NVIDIA A100-SXM4-80GB MIG 3g.40gb") is None
    assert devices.lookup("NVIDIA Foo 9000") is None
    machine = CARD.format(name="NVIDIA Foo 9000", memory="40000 39000", capability="7 5", mig="!3", virtualization=0)
    (stranger,) = see(machine).devices
    assert (stranger.catalog_key, stranger.compute_capability) == (None, (7, 5))
    assert any("not in the catalogue" in v.message for v in host_verdicts(node("n", [stranger])))
    plan = plan_for(cluster_of(node("n", [stranger])), "350M")
    assert plan.precision == "fp16"  # from the device's own capability
    assert plan.predicted.model_flops_utilization is None  # no peak is made up
    t4 = plan_for(declare("1xT4", more='device = { memory = "15109MiB" }'), "110M")
    assert t4.groups[0].memory_available_bytes == 15109 * MIB
