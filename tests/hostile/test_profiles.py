"""Profiles of strangers, through the whole of ``recommend``: a plan or one sentence, whatever the file holds."""

from __future__ import annotations

import json

import pytest
from hostile_inputs import FEW_NAMES, NAMES, ask, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratadvisor import pipeline, store

GPUS = "2x4xA100-80GB,1x2xV100-32GB"
DOCUMENT = store.dump(pipeline.load_cluster(cluster=None, gpus=GPUS, inter_node="100Gb/s", intra_node=None))
NUMBERS = [0, -1, 1, 3, 0.1, 1e-300, 5e-324, 1e300, -1e300, 1e18, 2**63, 2**64, 10**30, True]


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Return the path of every value below ``value``."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in inner for found in [(*path, key), *places(item, (*path, key))]]


PLACES = places(json.loads(DOCUMENT))
readings = st.builds(lambda v: {"value": v, "origin": "declared"}, st.sampled_from(NUMBERS))
scalars = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(NAMES), st.none())
values = st.one_of(readings, readings, scalars, st.just([]), st.just({}), st.recursive(scalars, st.lists, max_leaves=5))


def put(document: object, path: tuple, value: object) -> None:
    for key in path[:-1]:
        if not isinstance(document, (dict, list)) or (isinstance(document, dict) and key not in document):
            return
        document = document[key]
    if isinstance(document, (dict, list)):
        document[path[-1]] = value


@given(st.lists(st.tuples(st.sampled_from(PLACES), values), min_size=1, max_size=3), st.sampled_from(["1B", "70B"]))
@settings(deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_profile_gives_a_plan_or_one_sentence(capsys, tmp_path, changes, size):
    document = json.loads(DOCUMENT)
    for path, value in changes:
        put(document, path, value)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(document))
    code, out, err = ask(["recommend", "--model-size", size, "--cluster", path, "--no-write"], capsys)
    assert code in (0, 4, 6)
    assert bool(out) == (code == 0)
    words = set(out.split())
    assert not words & {"nan", "inf", "-inf"}
    assert (code == 0) or str(path) in err or code == 6 or "no usable device" in err
    assert tree(tmp_path) == {"cluster.json"}


QUANTITIES = [
    (("nodes", 0, "network_bytes_per_second"), -1.0),
    (("nodes", 0, "network_bytes_per_second"), 0.0),
    (("nodes", 0, "network_bytes_per_second"), 1e300),
    (("nodes", 0, "devices", 0, "memory_total_bytes"), -8e10),
    (("nodes", 0, "devices", 0, "memory_free_bytes"), 1e300),
    (("nodes", 0, "cpu", "usable_cores"), -2.0),
    (("nodes", 0, "speed_variation"), -0.5),
    (("nodes", 0, "count"), 10**30),
    (("nodes", 0, "count"), 0),
]


@pytest.mark.parametrize(("path", "value"), QUANTITIES)
def test_an_impossible_amount_is_refused_by_name(capsys, tmp_path, path, value):
    document = json.loads(DOCUMENT)
    put(document, path, value)
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document))
    code, _, err = ask(["recommend", "--model-size", "1B", "--cluster", file, "--no-write"], capsys)
    assert code == 4
    assert ".".join(map(str, path)) in err


@pytest.mark.parametrize("watts", [0, 1])
def test_a_power_limit_that_says_nothing_does_not_divide_by_it(capsys, tmp_path, watts):
    document = json.loads(DOCUMENT)
    for device in document["nodes"][0]["devices"]:
        device["power_limit_watts"] = {"value": watts, "origin": "reported"}
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document))
    code, _, _ = ask(["recommend", "--model-size", "1B", "--cluster", file, "--no-write"], capsys)
    assert code == 0


@pytest.mark.parametrize("rate", ["1e30GB/s", "0.0000001b/s", "0Gb/s", "-1Gb/s", "1e999Gb/s", "NaNGb/s", "infGb/s"])
def test_an_impossible_rate_on_the_command_line_is_wrong_usage(capsys, rate):
    code, _, err = ask(
        ["recommend", "--model-size", "1B", "--gpus", "2x8xA100-80GB", f"--inter-node={rate}", "--no-write"], capsys
    )
    assert code == 2
    assert "--gpus" in err


@pytest.mark.parametrize("name", FEW_NAMES)
def test_names_move_no_terminal_and_forge_no_line(capsys, tmp_path, name):
    document = json.loads(DOCUMENT)
    document["name"] = name
    document["nodes"][0]["hostname"] = name
    for node in document["nodes"]:
        for device in node["devices"]:
            device.update(name=name or "x", catalog_key=None, health_reason=name)
    document["nodes"][0]["devices"][0]["healthy"] = False
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(document))
    code, out, _ = ask(["recommend", "--model-size", "350M", "--cluster", file, "--no-write", "--explain"], capsys)
    assert code in (0, 6)
    code, out, _ = ask(["recommend", "--model-size", "350M", "--cluster", file, "--no-write", "--json"], capsys)
    if code == 0:
        assert any(g["device_name"] == (name or "x") for g in json.loads(out)["groups"])  # escaped, not changed
