from __future__ import annotations

from dataclasses import replace

import pytest
from fact_builders import candidate, facts_of, profile_of
from planning_clusters import GIGABIT, cluster, cpu, gpu, nodes

from stratadvisor.derive.drivers import version_of
from stratadvisor.schema.base import measured, reported
from stratadvisor.schema.facts import Fact
from stratadvisor.schema.profile import DataFeedProfile, DeviceProfile, NicProfile, NodeProfile, SoftwareProfile

A100 = nodes(gpu("A100-80GB"))


def hosts(cores: float | None, item: float | None = None, per_node: int = 4) -> object:
    return replace(nodes(gpu("A100-80GB"), per_node=per_node), cpu_cores=cores, data_item_seconds=item)


def fed(cores: float | None, item: float | None, *, waiting: float | None = None) -> dict[str, Fact]:
    """Facts of 4 devices that take 32 sequences each in a step of 2 s."""
    where = replace(nodes(gpu("A100-80GB"), per_node=4), cpu_cores=cores, data_item_seconds=item)
    feed = DataFeedProfile()
    if item is not None and waiting is not None:
        feed = DataFeedProfile(item_seconds=measured(item), item_cpu_seconds=measured(item * (1 - waiting)))
    made = candidate("ddp", where, batch=32, step=2.0)
    return facts_of(cluster(where), made, profile=profile_of(NodeProfile(hostname="n", data_feed=feed)))


def test_cores_and_threads_are_those_of_the_poorest_class() -> None:
    rich = replace(A100, cpu_cores=64.0)
    poor = replace(nodes(gpu("V100-32GB")), cpu_cores=20.0)
    facts = facts_of(cluster(rich, poor, between=GIGABIT))
    assert facts["cpu.cores_per_device"].value == 20 / 8
    assert facts["cpu.threads_per_device"].value == 2
    fraction = facts_of(cluster(replace(nodes(cpu(), per_node=1), cpu_cores=0.5)))
    assert fraction["cpu.threads_per_device"].value == 1  # half a core is still one thread


def test_unknown_cores_are_unknown_and_not_one() -> None:
    facts = facts_of(cluster(replace(A100, cpu_cores=None)))
    assert facts["cpu.cores_known"].value is False
    for name in ("cpu.cores_per_device", "cpu.threads_per_device", "data.workers_available"):
        assert facts[name].value is None


def test_workers_follow_from_item_time_and_step_time() -> None:
    # 32 sequences x 0.1 s / 2 s = 1.6 processes busy, rounded up and one more
    facts = fed(cores=32, item=0.1)
    assert facts["data.feed_ratio"].value == pytest.approx(1.6)
    assert facts["data.workers_needed"].value == 3
    assert facts["data.workers_available"].value == 32 / 4 - 1


def test_workers_that_mostly_wait_share_cores() -> None:
    assert fed(cores=32, item=0.1, waiting=0.9)["data.workers_available"].value == 4 * (32 / 4 - 1)
    assert fed(cores=32, item=0.1, waiting=0.4)["data.workers_available"].value == 32 / 4 - 1
    assert fed(cores=4, item=0.1)["data.workers_available"].value == 0


@pytest.mark.parametrize(("cores", "expected"), [(None, 2), (4, 0), (8, 1), (12, 2), (64, 2)])
def test_without_a_measured_feed_few_workers_and_only_from_spare_cores(cores: float | None, expected: int) -> None:
    facts = fed(cores=cores, item=None)
    assert facts["data.feed_ratio"].value is None
    assert facts["data.workers_needed"].value is None
    assert facts["data.workers_default"].value == expected


def nic(name: str, rate: float = 1e9, **more: object) -> NicProfile:
    fields = {
        "kind": "ethernet",
        "up": True,
        "addresses": ("10.0.0.1",),
        "rate_bytes_per_second": reported(rate),
        **more,
    }
    return NicProfile(name=name, **fields)  # type: ignore[arg-type]


def launch(*nodes_nics: tuple[NicProfile, ...]) -> dict[str, Fact]:
    profile = profile_of(*(NodeProfile(hostname=f"n{i}", nics=nics) for i, nics in enumerate(nodes_nics)))
    return facts_of(cluster(replace(A100, num_nodes=max(1, len(nodes_nics))), between=GIGABIT), profile=profile)


def test_the_fastest_physical_interface_common_to_all_nodes_is_taken() -> None:
    first = (nic("eth0"), nic("ens5", 10e9), nic("lo", kind="loopback"), nic("docker0", 99e9, kind="virtual"))
    facts = launch(first, (nic("ens5", 10e9), nic("eth0")))
    assert facts["launch.socket_interface"].value == "ens5"
    assert facts["launch.interfaces_differ"].value is False
    assert launch(first, (nic("eth0"),))["launch.socket_interface"].value == "eth0"


def test_interfaces_that_lead_nowhere_are_never_taken() -> None:
    useless = (
        nic("eth0", up=False),
        nic("eth1", addresses=()),
        nic("lo", kind="loopback"),
        *(nic(n, kind="virtual") for n in ("docker0", "veth12", "br-34", "virbr0", "cni0", "flannel.1", "tun0")),
    )
    facts = launch(useless, useless)
    assert facts["launch.socket_interface"].value is None
    assert facts["launch.interfaces_differ"].value is None
    assert "n0" in facts["launch.socket_interface"].because
    # inside a container the only way out is a virtual interface of an ordinary name
    assert launch((*useless, nic("eth9", kind="virtual")))["launch.socket_interface"].value == "eth9"


def test_different_names_on_two_nodes_are_said_and_no_name_is_made_up() -> None:
    facts = launch((nic("eno1"),), (nic("eth0"),))
    assert facts["launch.interfaces_differ"].value is True
    assert facts["launch.socket_interface"].value is None
    assert "eno1, eth0" in facts["launch.socket_interface"].because


def software(name: str, **versions: str) -> dict[str, Fact]:
    node = NodeProfile(
        hostname="n",
        devices=(DeviceProfile(index=0, kind="cuda", name=name, virtual=False),),
        software=SoftwareProfile(versions=versions),
    )
    return facts_of(cluster(A100), profile=profile_of(node))


@pytest.mark.parametrize(
    ("name", "driver", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", "525.85.05", True),
        ("NVIDIA GeForce RTX 4090", "550.40.06", True),
        ("NVIDIA GeForce RTX 4090", "550.40.07", False),
        ("NVIDIA GeForce RTX 4090", "570.124.06", False),
        ("NVIDIA GeForce RTX 3090", "525.85.05", False),
        ("NVIDIA A100-SXM4-80GB", "525.85.05", False),
        ("NVIDIA RTX 4000 SFF Ada Generation", "525.85.05", False),
    ],
)
def test_the_peer_access_defect_is_one_of_card_and_driver(name: str, driver: str, expected: bool) -> None:
    assert software(name, driver=driver)["launch.peer_access_defect"].value is expected


def test_an_unknown_driver_of_an_affected_card_is_unknown() -> None:
    assert software("NVIDIA GeForce RTX 4090")["launch.peer_access_defect"].value is None


def test_the_oldest_pytorch_counts() -> None:
    assert software("X", torch="2.13.0+cu130")["software.torch_release"].value == 2013
    assert software("X")["software.torch_release"].value is None
    old, new = (NodeProfile(hostname=v, software=SoftwareProfile(versions={"torch": v})) for v in ("2.9.1", "2.13.0"))
    assert facts_of(cluster(A100), profile=profile_of(new, old))["software.torch_release"].value == 2009


@pytest.mark.parametrize(
    ("text", "expected"), [("2.13.0+cpu", (2, 13, 0)), ("550.40.07", (550, 40, 7)), ("", ()), ("unknown", ())]
)
def test_versions_are_their_leading_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert version_of(text) == expected


def test_virtual_devices_are_reported_when_one_is_and_unknown_when_one_was_not_read() -> None:
    def flags(*virtual: bool | None) -> object:
        devices = tuple(DeviceProfile(index=i, kind="cuda", name="X", virtual=v) for i, v in enumerate(virtual))
        node = NodeProfile(hostname="n", devices=devices)
        return facts_of(cluster(A100), profile=profile_of(node))["launch.virtual_devices"].value

    assert flags(False, False) is False
    assert flags(False, True) is True
    assert flags(None, True) is True
    assert flags(None, False) is None


def test_formats_that_every_device_has() -> None:
    def formats(*devices: object, precision: str = "auto") -> tuple[object, object, object]:
        from fact_builders import WORKLOAD

        facts = facts_of(
            cluster(*(nodes(d) for d in devices), between=GIGABIT),  # type: ignore[arg-type]
            workload=WORKLOAD.model_copy(update={"precision": precision}),
        )
        return tuple(facts[f"precision.{n}_everywhere"].value for n in ("bf16", "fp16", "asked"))  # type: ignore[return-value]

    a100, v100, blank = gpu("A100-80GB"), gpu("V100-32GB"), gpu("A100-80GB")
    blank = replace(blank, name="?", catalog_key=None, compute_capability=None, supports=frozenset({"fp32"}))
    assert formats(a100) == (True, True, None)
    assert formats(a100, v100, precision="bf16") == (False, True, False)
    assert formats(v100, precision="fp32") == (False, True, True)
    assert formats(a100, blank, precision="bf16") == (None, None, None)
    assert formats(v100, blank) == (False, None, None)
    assert formats(cpu()) == (False, False, None)
    assert formats(cpu(fp32=1e11, bf16=2e11), precision="bf16") == (True, False, True)
    assert formats(cpu(fp32=1e11, bf16=5e10)) == (False, False, None)


def test_links_and_their_ratio() -> None:
    two = replace(A100, num_nodes=2, nvlink=True, origins={"intra_node_bytes_per_second": "measured"})
    where = replace(cluster(two, between=25e9), origins={"inter_node_bytes_per_second": "reported"})
    facts = facts_of(where)
    assert facts["interconnect.inter_node_bytes_per_second"].value == 25e9
    assert facts["interconnect.intra_node_bytes_per_second"].value == 3e11
    assert facts["interconnect.inter_to_intra_ratio"].value == pytest.approx(25e9 / 3e11)
    assert facts["interconnect.inter_to_intra_ratio"].origin == "reported"  # as good as its worse input
    assert facts["interconnect.reported_only"].value is True
    assert facts["interconnect.nvlink_everywhere"].value is True
    partly = facts_of(cluster(two, replace(nodes(gpu("V100-32GB")), nvlink=False), between=25e9))
    assert partly["interconnect.nvlink_everywhere"].value is False
    alone = facts_of(cluster(A100))
    assert alone["interconnect.inter_node_bytes_per_second"].value is None
    assert alone["interconnect.reported_only"].value is None
    assert alone["interconnect.nvlink_everywhere"].value is None


@pytest.mark.parametrize(
    ("parameters", "scale"), [(10**9, "small"), (10**9 + 1, "medium"), (10**10, "medium"), (10**10 + 1, "large")]
)
def test_scales_of_models(parameters: int, scale: str) -> None:
    from fact_builders import WORKLOAD

    model = WORKLOAD.model.model_copy(update={"num_parameters": parameters})
    facts = facts_of(cluster(A100), workload=WORKLOAD.model_copy(update={"model": model, "global_batch_size": 12}))
    assert facts["workload.scale"].value == scale
    assert facts["workload.parameters"].value == parameters
    assert facts["workload.global_batch_size"].value == 12
    assert facts_of(cluster(A100))["workload.global_batch_size"].value is None


@pytest.mark.parametrize(
    ("kernels", "capped"),
    [
        (("6.8.0-generic",), False),
        # CUDA on WSL user guide, "Known limitations": pinned system memory is limited
        (("6.8.0-generic", "5.15.167.4-microsoft-standard-WSL2"), True),
        (("6.8.0-generic", ""), None),
        (("", "5.15.167.4-microsoft-standard-WSL2"), True),
    ],
)
def test_pinned_memory_is_capped_under_windows(kernels: tuple[str, ...], capped: bool | None) -> None:
    known = [
        NodeProfile(hostname=f"n{i}", software=SoftwareProfile(versions={"linux": kernel} if kernel else {}))
        for i, kernel in enumerate(kernels)
    ]
    assert facts_of(cluster(A100), profile=profile_of(*known))["host.pinned_memory_capped"].value is capped
