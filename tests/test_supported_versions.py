"""What pyproject.toml promises is what the matrix runs; and the matrix, the audit and the scan can fail."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks import audit, supported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_GIGABYTES = {"torch", "deepspeed"}
"""Not in the file of lowest releases: run by hand (docs/development.md)."""


def requirements() -> list[Requirement]:
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    return [Requirement(line) for line in [*PROJECT["dependencies"], *extras]]


def test_the_lowest_releases_are_the_lower_bounds():
    bounds = {r.name: str(r.specifier) for r in requirements() if r.name not in OF_GIGABYTES}
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert {p.name: str(p.specifier).replace("==", ">=") for p in pins} == bounds
    markers = {r.name: str(r.marker) for r in requirements() if r.marker}
    assert {p.name: str(p.marker) for p in pins if p.marker} == markers


def test_what_is_installed_here_satisfies_the_bounds():
    for requirement in requirements():
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)


def test_the_named_pythons_begin_where_requires_python_does():
    named = supported.supported_versions()
    assert PROJECT["requires-python"] == f">={named[0]}"
    minors = [int(version.split(".")[1]) for version in named]
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_what_the_matrix_installs_is_what_deciding_needs():
    light = {Requirement(line).name for line in supported.light_dependencies()}
    declared = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert declared - light == supported.NOT_INSTALLED & declared
    assert declared >= supported.NOT_INSTALLED


@pytest.mark.parametrize("name", [*supported.TESTS, *supported.LEFT_OUT, *supported.WITH_LOWEST])
def test_the_matrix_names_tests_that_exist(name):
    assert (ROOT / name).exists()


def test_the_lowest_pins_win_over_the_newest_and_tools_stay_pinned():
    lines = supported.constraint_lines(lowest=True)
    assert not [line for line in lines if line.startswith("vl-convert-python==1.9")]
    tools = {supported.distribution(line) for line in supported.constraint_lines(lowest=False)}
    assert tools == set(supported.TOOLS) - {"packaging"}  # pytest brings it


def test_a_python_that_was_asked_for_must_be_there(monkeypatch):
    monkeypatch.setattr(supported, "find_python", lambda version: None if version == "3.13" else f"/py{version}")
    with pytest.raises(supported.MatrixError, match=r"3\.13 was asked for"):
        supported.environments(["3.12", "3.13"], lowest=True)
    assert [e.name for e in supported.environments(["3.12"], lowest=True)[0]] == ["3.12"]
    assert [e.name for e in supported.environments(["3.10"], lowest=True)[0]] == ["3.10-lowest"]
    chosen, missing = supported.environments([], lowest=True)
    assert missing == ["3.13"]
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert {e.version for e in chosen} == {"3.10", "3.11", "3.12"} - ({running} - {"3.10"})
    assert [e.version for e in chosen if e.lowest] == ["3.10"]


def test_other_bytes_are_named_by_job_and_file():
    one = {"a": {"plan.json": "x", "launch.sh": "y"}, "b": {"plan.json": "z"}}
    other = {"a": {"plan.json": "x", "launch.sh": "Y"}, "b": {"plan.json": "z", "more": "w"}}
    assert supported.differences(one, one) == []
    assert supported.differences(one, other) == ["a: launch.sh", "b: more"]
    assert supported.differences(one, {"a": one["a"]}) == ["b: plan.json"]


SKIPPED = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI and could not be audited"}
SOUND = {"name": "rich", "version": "15.0.0", "vulns": []}
FAULTY = {"name": "jinja2", "version": "3.1.0", "vulns": [{"id": "CVE-2024-22195", "fix_versions": ["3.1.3"]}]}


@pytest.mark.parametrize(
    ("answer", "code", "word"),
    [
        (json.dumps({"dependencies": [SOUND]}), 0, "1 packages audited, 0 advisories"),
        (json.dumps({"dependencies": [SOUND, FAULTY]}), 1, "jinja2 3.1.0: CVE-2024-22195, fixed in 3.1.3"),
        (json.dumps({"dependencies": [SKIPPED]}), audit.NOT_AUDITED, "NOT AUDITED"),
        (json.dumps({"dependencies": [SOUND, SKIPPED]}), 0, "not audited, unknown to the service: jinja2"),
        ("", audit.NOT_AUDITED, "no route to host"),
    ],
)
def test_an_audit_that_was_none_is_no_peace(answer, code, word):
    found, sentences = audit.verdict(answer, "Traceback\nConnectionError: no route to host\n")
    assert found == code
    assert word in "\n".join(sentences)


PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation)\b", re.IGNORECASE)


@pytest.mark.parametrize("name", [r.name for r in requirements() if r.marker is None or r.marker.evaluate()])
def test_licenses_of_dependencies_permit_what_ours_does(name):
    told = importlib.metadata.metadata(name)
    fields = [told.get("License-Expression"), told.get("License"), *(told.get_all("Classifier") or [])]
    words = [str(f).splitlines()[0] for f in fields if f and ("License" in str(f) or not str(f).count("::"))]
    assert any(PERMISSIVE.search(word) for word in words), words


def test_a_planted_secret_is_found_and_known_ones_were_looked_at(tmp_path):
    baseline = json.loads((ROOT / ".secrets.baseline").read_text(encoding="utf-8"))
    assert all(entry["is_secret"] is False for found in baseline["results"].values() for entry in found)
    planted = tmp_path / "settings.py"
    planted.write_text(f'key = "{"AKIA" + "Z7QW" * 4}"\n', encoding="utf-8")
    program = [str(Path(sys.executable).parent / "detect-secrets-hook"), "--baseline", str(ROOT / ".secrets.baseline")]
    found = subprocess.run([*program, str(planted)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 1
    assert "AWS Access Key" in found.stdout
    planted.write_text("key = None\n", encoding="utf-8")
    clean = subprocess.run([*program, str(planted)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert clean.returncode == 0, clean.stdout
