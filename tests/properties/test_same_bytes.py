"""Same inputs, same bytes: in another process, another place, another language, another time zone, for another user."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor import pipeline, store

STRATEGIES = ("ddp", "zero2", "diloco")
PROFILE = pipeline.load_cluster(cluster=None, gpus="2x4xA100-80GB,1x2xV100-32GB", inter_node="10Gb/s", intra_node=None)


def start(folder: Path, arguments: list[str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "stratadvisor", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder)} | variables,
        capture_output=True,
        check=False,
        timeout=300,
    )


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != pipeline.SOURCE_NAME
    }


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Write bundles in two processes that differ in all that should not matter."""
    worlds = [
        {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C", "USER": "quxuser17", "LOGNAME": "quxuser17"},
        {
            "PYTHONHASHSEED": "4242",
            "TZ": "Pacific/Kiritimati",
            "LANG": "tr_TR.UTF-8",
            "USER": "another",
            "COLUMNS": "40",
            "FORCE_COLOR": "1",
        },
    ]
    made = []
    for number, variables in enumerate(worlds):
        folder = tmp_path_factory.mktemp(f"a-place-{'x' * (number * 7)}")
        store.write_document(folder / "cluster.json", PROFILE)
        screens = []
        for strategy in STRATEGIES:
            arguments = ["recommend", "--model-size", "1B", "--cluster", "cluster.json", "--strategy", strategy]
            done = start(folder, [*arguments, "--output", strategy, "--json"], **variables)
            assert done.returncode == 0, done.stderr
            screens.append(done.stdout)
        made.append((folder, screens))
    return made


def test_two_processes_write_the_same_bytes(twice):
    (first, screens), (second, others) = twice
    assert digests(first) == digests(second)
    assert screens == others


def test_no_file_of_a_bundle_tells_when_where_or_by_whom_it_was_made(twice):
    folder = twice[0][0]
    forbidden = [str(folder), str(Path(pipeline.__file__).parent), "quxuser17"]
    for strategy in STRATEGIES:
        for path in (folder / strategy).rglob("*"):
            if not path.is_file() or path.name == pipeline.SOURCE_NAME:
                continue
            text = path.read_text(encoding="utf-8")
            for word in forbidden:
                assert word not in text, (path, word)
            if "stratadvisor_runtime" not in path.parts:
                assert re.search(r"\b20[2-9]\d-\d\d-\d\d[T ]\d\d:\d\d", text) is None, path


def test_the_lock_holds_the_digest_of_every_file(twice):
    folder = twice[0][0] / STRATEGIES[0]
    lock = json.loads((folder / "stratadvisor.lock.json").read_text())
    assert lock["digests"] == {k: v for k, v in digests(folder).items() if k != "stratadvisor.lock.json"}


def test_a_profile_written_and_read_is_the_same(tmp_path):
    store.write_document(tmp_path / "a.json", PROFILE)
    again = store.read_profile(tmp_path / "a.json")
    assert again == PROFILE
    store.write_document(tmp_path / "b.json", again)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
