"""Documents on disk: round trips, versions, bad input."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratadvisor import store
from stratadvisor.errors import ProfileError, StratadvisorError
from stratadvisor.schema.base import unknown
from stratadvisor.schema.profile import PROFILE_SCHEMA_VERSION, ClusterProfile, CpuProfile, NodeProfile


def profile() -> ClusterProfile:
    return ClusterProfile(nodes=(NodeProfile(hostname="a"),))


def test_a_profile_survives_a_round_trip(tmp_path):
    store.write_document(tmp_path / "p.json", profile())
    assert store.read_profile(tmp_path / "p.json") == profile()


def test_the_last_bits_of_a_sum_do_not_reach_a_file():
    rounded, summed = 0.3, 0.1 + 0.2  # the sum is 0.30000000000000004
    assert summed != rounded
    texts = [
        store.dump(ClusterProfile(nodes=(NodeProfile.model_validate({"hostname": "a", "speed_variation": value}),)))
        for value in (summed, rounded)
    ]
    assert texts[0] == texts[1]


def test_unknown_readings_stay_unknown_through_json(tmp_path):
    asked = CpuProfile(usable_cores=unknown("the kernel does not say"))
    store.write_document(tmp_path / "p.json", ClusterProfile(nodes=(NodeProfile(hostname="a", cpu=asked),)))
    cores = json.loads((tmp_path / "p.json").read_text())["nodes"][0]["cpu"]["usable_cores"]
    assert cores == {"value": None, "origin": "unknown", "detail": "the kernel does not say"}
    assert store.read_profile(tmp_path / "p.json").nodes[0].host_memory.total_bytes == unknown("not read")


def test_a_profile_that_says_nothing_is_written_as_what_it_says():
    text = store.dump_profile(profile())
    assert json.loads(text) == {"schema_version": PROFILE_SCHEMA_VERSION, "nodes": [{"hostname": "a"}]}
    assert json.loads(store.dump(profile()))["nodes"][0]["cpu"]["usable_cores"]["origin"] == "unknown"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"{", "line 1"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'{"schema_version": 99, "nodes": []}', "schema version 99"),
        (b'{"schema_version": "x"}', "whole number"),
        (b'{"nodes": []}', "nodes"),
        (b'{"nodes": [{"hostname": "a", "speed": 3}]}', "nodes.0.speed"),
        (b'{"nodes": [{"hostname": "a", "network_bytes_per_second": NaN}]}', "network_bytes_per_second"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_profile_is_refused_with_one_sentence(tmp_path, content, words):
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        store.read_profile(path)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_and_a_directory_are_named(tmp_path):
    with pytest.raises(ProfileError, match="does not exist"):
        store.read_profile(tmp_path / "no.json")
    with pytest.raises(ProfileError, match="is a directory"):
        store.read_profile(tmp_path)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["nodes", "hostname", "devices", "cpu", "value", "index"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_garbage_is_a_profile_or_a_profile_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("garbage") / "p.json"
    path.write_text(json.dumps(data))
    try:
        store.read_profile(path)
    except ProfileError as error:
        assert error.message


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    target = tmp_path / "f.txt"
    target.write_text("old")

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StratadvisorError, match="No space left"):
        store.atomic_write(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f.txt"]


def test_an_executable_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        store.atomic_write(tmp_path / "run.sh", "#!/bin/sh\n", executable=True)
    finally:
        os.umask(before)
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o750
