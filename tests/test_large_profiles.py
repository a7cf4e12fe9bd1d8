"""Files of profiles: short, and nothing lost; many nodes as differences; one digest however a file is written."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor import store
from stratadvisor.errors import ProfileError
from stratadvisor.schema import brief
from stratadvisor.schema.base import Reading, measured, reported, unknown
from stratadvisor.schema.brief import LIKE, WHOLE_NODES
from stratadvisor.schema.descriptions import json_schema
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DataFeedProfile,
    DeviceLink,
    DeviceProfile,
    HostMemoryProfile,
    MemoryUser,
    NicProfile,
    NodeProfile,
    SoftwareProfile,
)

SAMPLES = Path(__file__).parent / "samples"
READINGS = st.one_of(
    st.sampled_from(["not read", "not measured", "denied", ""]).map(unknown),
    st.builds(
        lambda value, origin, detail: Reading(value=value, origin=origin, detail=detail),
        st.sampled_from([1.0, 0.1 + 0.2, 7e14, 1 / 3]),
        st.sampled_from(["measured", "reported", "declared"]),
        st.sampled_from(["", "NVML", "not read"]),
    ),
)
RATES = st.dictionaries(st.sampled_from(["bf16", "fp16", "fp32"]), READINGS, max_size=3)
SIZES = st.dictionaries(
    st.sampled_from(["bf16", "fp32"]), st.dictionaries(st.sampled_from([1024, 4096]), st.just(1e12)), max_size=2
)
DEVICES = st.builds(
    DeviceProfile,
    index=st.just(0),
    kind=st.just("cuda"),
    name=st.sampled_from(["A", "B"]),
    catalog_key=st.sampled_from([None, "A"]),
    compute_capability=st.sampled_from([None, (8, 0), (9, 0)]),
    mig_enabled=st.sampled_from([None, False, True]),
    memory_users=st.sampled_from([(), (MemoryUser(pid=1),), (MemoryUser(pid=1), MemoryUser(pid=2, name="x"))]),
    memory_free_bytes=READINGS,
    clock_sm_hertz=READINGS,
    matmul_flops_per_second=RATES,
    matmul_by_size=SIZES,
)
NODES = st.builds(
    lambda devices, **rest: NodeProfile(
        devices=tuple(d.model_copy(update={"index": i}) for i, d in enumerate(devices)), **rest
    ),
    devices=st.lists(DEVICES, max_size=3),
    hostname=st.sampled_from(["a", "b", "c", "d", "e\u2028\n"]),
    count=st.sampled_from([1, 2]),
    cpu=st.builds(CpuProfile, usable_cores=READINGS, model_name=st.sampled_from(["", "x"])),
    host_memory=st.builds(HostMemoryProfile, available_bytes=READINGS),
    nics=st.sampled_from([(), (NicProfile(name="eth0"),), (NicProfile(name="eth0", up=True),)]),
    links=st.sampled_from([(), (DeviceLink(device_a=0, device_b=1, kind="nvlink"),)]),
    data_feed=st.builds(
        DataFeedProfile,
        item_seconds=READINGS,
        items_per_second_by_workers=st.dictionaries(st.sampled_from([0, 2]), st.just(3.0)),
    ),
    software=st.builds(SoftwareProfile, versions=st.dictionaries(st.sampled_from(["torch", "nccl"]), st.just("1"))),
    network_bytes_per_second=READINGS,
)


def rounded(profile: ClusterProfile) -> ClusterProfile:
    """Return the profile as a file that spells everything out gives it back."""
    return ClusterProfile.model_validate_json(store.dump(profile))


@given(st.lists(NODES, min_size=1, max_size=6), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=100)
def test_nothing_is_lost_whatever_nodes_share(tmp_path_factory, drawn, many):
    profile = ClusterProfile(nodes=tuple(drawn))
    path = tmp_path_factory.mktemp("profiles") / "p.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(brief, "WHOLE_NODES", 0 if many else WHOLE_NODES)
        store.write_document(path, profile)
        read = store.read_profile(path)
        assert read == rounded(profile)
        assert store.digest(read) == store.digest(profile)
        assert store.dump_profile(read) == path.read_text(encoding="utf-8")


def test_the_published_schema_knows_nodes_that_are_like_others():
    whole, other = json_schema(ClusterProfile)["properties"]["nodes"]["items"]["anyOf"]
    assert whole == {"$ref": "#/$defs/NodeProfile"}
    assert other["required"] == [LIKE]
    assert LIKE in other["properties"]


def shuffled(value: object, source: random.Random) -> object:
    if isinstance(value, dict):
        items = [(key, shuffled(item, source)) for key, item in value.items()]
        source.shuffle(items)
        return dict(items)
    return [shuffled(item, source) for item in value] if isinstance(value, list) else value


def alike(count: int) -> ClusterProfile:
    devices = tuple(
        DeviceProfile(index=i, kind="cuda", name="H", memory_free_bytes=reported(8e10, "NVML")) for i in range(8)
    )
    return ClusterProfile(
        nodes=tuple(
            NodeProfile(hostname=f"n{i}", devices=devices, network_bytes_per_second=measured(1e9 + i, "TCP"))
            for i in range(count)
        )
    )


@pytest.mark.parametrize("count", [2, WHOLE_NODES + 1])
def test_the_digest_is_that_of_the_content_not_of_the_file(tmp_path, count):
    profile = alike(count)
    whole, short, mixed, older = (tmp_path / f"{name}.json" for name in ("whole", "short", "mixed", "older"))
    whole.write_text(store.dump(profile))
    short.write_text(store.dump_profile(profile))
    mixed.write_text(json.dumps(shuffled(json.loads(store.dump(profile)), random.Random(3))))
    older.write_text(json.dumps(json.loads(store.dump(profile)) | {"schema_version": 1}))
    assert len({store.digest(store.read_profile(path)) for path in (whole, short, mixed, older)}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"hostname": "other"},
        {"count": 2},
        {"network_bytes_per_second": measured(2e9, "TCP")},
        {"network_bytes_per_second": reported(1e9, "TCP")},
        {"network_bytes_per_second": measured(1e9, "RDMA")},
        {"speed_variation": unknown("not asked")},
        {"devices": ()},
        {"nics": (NicProfile(name="eth0"),)},
    ],
)
def test_the_digest_changes_with_every_part(change):
    one = alike(3)
    first, *rest = one.nodes
    other = one.model_copy(update={"nodes": (first.model_copy(update=change), *rest)})
    assert store.digest(other) != store.digest(one)
    swapped = one.model_copy(update={"nodes": (*rest, first)})
    assert store.digest(swapped) != store.digest(one)


def test_defaults_belong_to_the_version():
    # what a file leaves out is read as this; whoever changes a default raises the version and converts older files
    short, whole = (store.read_profile(SAMPLES / f"profile-2-{name}.json") for name in ("brief", "whole"))
    assert short == whole
    assert len((SAMPLES / "profile-2-brief.json").read_text()) < len((SAMPLES / "profile-2-whole.json").read_text()) / 4


def test_a_few_nodes_are_spelled_out_and_many_are_lines(tmp_path):
    few, many = alike(WHOLE_NODES), alike(1000)
    assert all(len(node["devices"]) == 8 for node in json.loads(store.dump_profile(few))["nodes"])
    nodes = json.loads(store.dump_profile(many))["nodes"]
    assert nodes[7] == {"hostname": "n7", LIKE: "n0", "network_bytes_per_second": {"value": 1e9 + 7}}
    lines = store.dump_profile(many).splitlines()
    assert sum(line.startswith('    {"hostname": ') for line in lines) == 999
    # an order of magnitude: a node of eight devices takes 20 kB where all is spelled out
    assert len(store.dump(many)) > 100 * len(store.dump_profile(many))


def test_a_short_file_of_endless_nodes_is_refused(tmp_path):
    devices = [{"index": i, "kind": "cuda", "name": "A"} for i in range(1000)]
    path = written(tmp_path, {"hostname": "a", "devices": devices}, *[{"hostname": "b", LIKE: "a"}] * 6000)
    with pytest.raises(ProfileError, match=r"nodes\.5001\.like: nodes like others have more than 5000000 parts"):
        store.read_profile(path)


def written(tmp_path, *nodes: object):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"schema_version": 2, "nodes": nodes}))
    return path


BASE = {
    "hostname": "a",
    "devices": [{"index": 0, "kind": "cuda", "name": "A", "memory_free_bytes": 5e9}],
    "cpu": {"model_name": "x", "usable_cores": 8},
}


def test_a_hand_written_difference_is_read(tmp_path):
    other = {"hostname": "b", LIKE: "a", "devices": [{"uuid": "u"}], "cpu": {"usable_cores": 4}}
    third = {"hostname": "c", LIKE: "b", "cpu": {"usable_cores": {"value": 3}}}
    a, b, c = store.read_profile(written(tmp_path, BASE, other, third)).nodes
    assert (b.devices[0].uuid, b.devices[0].memory_free_bytes) == ("u", a.devices[0].memory_free_bytes)
    assert b.cpu == CpuProfile(model_name="x", usable_cores=Reading(value=4, origin="declared"))
    assert (c.devices, c.cpu.usable_cores) == (b.devices, Reading(value=3, origin="declared"))
    assert a.cpu.usable_cores.value == 8


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"hostname": "b", LIKE: "z"}, "nodes.1.like: no node above this one is called 'z'"),
        ({"hostname": "b", LIKE: "b"}, "nodes.1.like: no node above this one is called 'b'"),
        ({"hostname": "b", LIKE: ["a"]}, "nodes.1.like: no node above"),
        ({"hostname": "b", LIKE: None}, "nodes.1.like: no node above"),
        ({"hostname": "b", LIKE: "a", "speed": 3}, "nodes.1.speed: Extra inputs"),
        ({"hostname": "b", LIKE: "a", "count": 0}, "nodes.1.count: "),
        ({"hostname": "b", LIKE: "a", "cpu": {"sockets": 1}}, "nodes.1.cpu.sockets: Extra inputs"),
        ({"hostname": "b", LIKE: "a", "devices": [{"kind": "gpu"}]}, "nodes.1.devices.0.kind: "),
        ({"hostname": "b", LIKE: "a", "devices": [{"uuid": "u"}] * 2}, "nodes.1.devices.0.index: Field required"),
        ({"hostname": "b", LIKE: "a", "devices": [BASE["devices"][0]] * 2}, "lists a device index twice"),
        ({"hostname": "b", LIKE: "a", "cpu": {"usable_cores": {"value": None}}}, "nodes.1.cpu.usable_cores: "),
        ({LIKE: "a", "hostname": 3}, "nodes.1.hostname: "),
    ],
)
def test_a_wrong_difference_is_refused_with_its_place(tmp_path, node, words):
    with pytest.raises(ProfileError) as caught:
        store.read_profile(written(tmp_path, BASE, node))
    assert words in caught.value.message
    assert "\n" not in caught.value.message
