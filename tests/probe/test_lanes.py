import pytest

from stratadvisor.probe.found import TorchDevice, TorchDevices
from stratadvisor.probe.lanes import accelerator_lanes, cpu_devices, cpu_lanes, threads_per_lane, torch_only_device
from stratadvisor.schema.base import reported, unknown
from stratadvisor.schema.profile import CpuProfile, DeviceProfile, HostMemoryProfile


def cpu(cores: float) -> CpuProfile:
    return CpuProfile(model_name="Some CPU", usable_cores=reported(cores))


def gpu(index: int, uuid: str = "", **more: object) -> DeviceProfile:
    return DeviceProfile.model_validate({"index": index, "kind": "cuda", "name": "GPU", "uuid": uuid, **more})


def torch_gpu(index: int, uuid: str = "", capability: tuple[int, int] | None = (8, 0)) -> TorchDevice:
    return TorchDevice(
        index=index,
        name="GPU",
        uuid=uuid,
        compute_capability=capability,
        memory_total_bytes=80 * 2**30,
        memory_free_bytes=79 * 2**30,
    )


@pytest.mark.parametrize(("cores", "devices"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (64.0, 2)])
def test_a_cpu_is_one_device_per_whole_core_and_at_most_two(cores: float, devices: int) -> None:
    assert len(cpu_devices(cpu(cores), HostMemoryProfile())) == devices


def test_cpu_devices_share_what_the_process_may_use() -> None:
    memory = HostMemoryProfile(
        total_bytes=reported(64e9), available_bytes=reported(6e9), limit_bytes=reported(8e9), limited_by="cgroup v2"
    )
    devices = cpu_devices(cpu(2), memory)
    assert [d.memory_total_bytes.value for d in devices] == [4e9, 4e9]
    assert [d.memory_free_bytes.value for d in devices] == [3e9, 3e9]
    assert {d.memory_total_bytes.origin for d in devices} == {"estimated"}


def test_unknown_memory_stays_unknown_with_its_reason() -> None:
    memory = HostMemoryProfile(total_bytes=unknown("no /proc"), available_bytes=unknown("no /proc"))
    device = cpu_devices(cpu(1), memory)[0]
    assert device.memory_total_bytes.value is None
    assert device.memory_free_bytes.detail == "no /proc"


@pytest.mark.parametrize(("cores", "lanes", "threads"), [(2, 2, 1), (16, 2, 8), (3.5, 2, 1), (0.5, 1, 1), (4, 8, 1)])
def test_every_rank_has_its_share_of_threads_and_at_least_one(cores: float, lanes: int, threads: int) -> None:
    assert threads_per_lane(cores, lanes) == threads


def test_devices_are_matched_by_uuid_whatever_the_order() -> None:
    devices = (gpu(0, "GPU-aaaa"), gpu(1, "GPU-bbbb"))
    found = TorchDevices(kind="cuda", devices=(torch_gpu(0, "bbbb"), torch_gpu(1, "aaaa")))
    assert [(lane.device_index, lane.torch_name) for lane in accelerator_lanes(devices, found)] == [
        (0, "cuda:1"),
        (1, "cuda:0"),
    ]


def test_a_device_that_torch_does_not_list_and_a_lost_one_get_no_lane() -> None:
    devices = (gpu(0, "GPU-aaaa"), gpu(1, "GPU-bbbb"), gpu(2, "GPU-cccc", healthy=False, health_reason="lost"))
    found = TorchDevices(kind="cuda", devices=(torch_gpu(0, "aaaa"), torch_gpu(1, "cccc")))
    assert [lane.device_index for lane in accelerator_lanes(devices, found)] == [0]


def test_without_uuids_equal_counts_are_matched_by_position() -> None:
    found = TorchDevices(kind="cuda", devices=(torch_gpu(0), torch_gpu(1)))
    lanes = accelerator_lanes((gpu(0), gpu(1)), found)
    assert [(lane.device_index, lane.torch_name, lane.capability) for lane in lanes] == [
        (0, "cuda:0", (8, 0)),
        (1, "cuda:1", (8, 0)),
    ]
    assert accelerator_lanes((gpu(0), gpu(1), gpu(2)), found) == ()


def test_a_lost_device_that_torch_does_not_count_shifts_nobody() -> None:
    devices = (gpu(0, healthy=False, health_reason="lost"), gpu(1), gpu(2))
    found = TorchDevices(kind="cuda", devices=(torch_gpu(0), torch_gpu(1)))
    assert [(lane.device_index, lane.torch_name) for lane in accelerator_lanes(devices, found)] == [
        (1, "cuda:0"),
        (2, "cuda:1"),
    ]
    counted = TorchDevices(kind="cuda", devices=(torch_gpu(0), torch_gpu(1), torch_gpu(2)))
    assert [(lane.device_index, lane.torch_name) for lane in accelerator_lanes(devices, counted)] == [
        (1, "cuda:1"),
        (2, "cuda:2"),
    ]


def test_lanes_of_one_vendor_leave_out_the_other() -> None:
    amd = DeviceProfile(index=1, kind="rocm", name="AMD")
    found = TorchDevices(kind="cuda", devices=(torch_gpu(0),))
    assert [lane.device_index for lane in accelerator_lanes((gpu(0), amd), found)] == [0]


def test_a_device_known_to_torch_alone_has_what_torch_says() -> None:
    device = torch_only_device(torch_gpu(3), "cuda")
    assert (device.index, device.kind, device.compute_capability) == (3, "cuda", (8, 0))
    assert device.memory_free_bytes.value == 79 * 2**30


def test_cpu_lanes_carry_the_free_memory() -> None:
    memory = HostMemoryProfile(total_bytes=reported(8e9), available_bytes=reported(6e9))
    lanes = cpu_lanes(cpu_devices(cpu(2), memory))
    assert [(lane.torch_name, lane.kind, lane.memory_free_bytes) for lane in lanes] == [("cpu", "cpu", 3e9)] * 2
