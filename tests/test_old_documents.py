"""Documents that earlier states of this project wrote (tests/samples) are read, and nothing in them is lost.

A sample is called ``KIND-VERSION-NAME.json``. Whoever changes a schema so that one of them cannot be read raises the
version and converts the older one when it is loaded; samples are added, never changed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from stratadvisor import store
from stratadvisor.cli import run
from stratadvisor.schema.brief import LIKE
from stratadvisor.schema.plan import PLAN_SCHEMA_VERSION
from stratadvisor.schema.profile import PROFILE_SCHEMA_VERSION

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.json"))
READ = {"plan": store.read_plan, "profile": store.read_profile}
CURRENT = {"plan": PLAN_SCHEMA_VERSION, "profile": PROFILE_SCHEMA_VERSION}


def leaves(value: object, path: tuple = ()) -> dict[tuple, object]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        return {path: value}
    return {where: leaf for key, item in inner for where, leaf in leaves(item, (*path, key)).items()}


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-11)  # what is written has 12 digits
    return one == other


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_an_older_document_is_read_whole(path):
    kind = path.stem.split("-")[0]
    read = leaves(json.loads(store.dump(READ[kind](path))))
    written = leaves(json.loads(path.read_text()))
    assert read[("schema_version",)] == CURRENT[kind]  # from here on it is one of this version
    del written[("schema_version",)]
    written = {where: value for where, value in written.items() if where[-1] != LIKE}  # tests/test_large_profiles.py
    assert {where: value for where, value in written.items() if not same(read.get(where, "gone"), value)} == {}


@pytest.mark.parametrize("kind", READ)
def test_there_is_a_sample_of_every_version(kind):
    versions = {json.loads(path.read_text())["schema_version"] for path in SAMPLES if path.stem.startswith(f"{kind}-")}
    assert versions == set(range(1, CURRENT[kind] + 1))


@pytest.mark.parametrize("kind", READ)
def test_a_document_of_a_later_version_is_refused_with_the_version_it_needs(kind, capsys, tmp_path):
    newer = CURRENT[kind] + 1
    document = json.loads(next(path for path in SAMPLES if path.stem.startswith(kind)).read_text())
    file = tmp_path / f"{kind}.json"
    file.write_text(json.dumps(document | {"schema_version": newer}))
    commands = {
        "plan": ["explain", str(file)],
        "profile": ["recommend", "--model-size", "1B", "--cluster", str(file), "--no-write"],
    }
    assert run(commands[kind]) in (1, 4)
    said = capsys.readouterr().err
    assert f"schema version {newer}" in said
    assert f"reads up to {CURRENT[kind]}" in said
    assert "update stratadvisor" in said


@pytest.mark.parametrize("path", [p for p in SAMPLES if p.stem.startswith("plan")], ids=lambda p: p.stem)
def test_an_older_plan_is_explained(path, capsys):
    assert run(["explain", str(path)]) == 0
    assert json.loads(path.read_text())["strategy"] in capsys.readouterr().out
