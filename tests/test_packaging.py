"""The wheel holds rules, templates and types, and works from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(ROOT)],
        check=True,
        timeout=600,
        capture_output=True,
    )
    (built,) = out.glob("stratadvisor-*.whl")
    return built


def data_files(kind: str) -> set[str]:
    return {
        str(p.relative_to(ROOT / kind))
        for p in (ROOT / kind).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }


@pytest.mark.process
def test_the_wheel_has_every_rule_template_and_the_type_marker(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("rules", "templates"):
        inside = {n.split(f"_bundled/{kind}/", 1)[1] for n in names if f"_bundled/{kind}/" in n}
        assert inside == data_files(kind)
    assert {"stratadvisor/py.typed", "stratadvisor/__init__.pyi"} <= names
    assert [n for n in names if n.endswith(".data/data/share/man/man1/stratadvisor.1")]
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/"))]


@pytest.mark.process
def test_the_unpacked_wheel_answers_from_another_folder(wheel, tmp_path):
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    program = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import stratadvisor; "
        f"assert stratadvisor.__file__.startswith({str(target)!r}); "
        "from stratadvisor.cli import main; "
        "main(['recommend', '--model-size', '1B', '--gpus', '4xRTX4090', '--output', 'out'])"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "launch.sh").is_file()


def test_the_readme_names_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make run" in readme
    assert "make test" in readme


def test_version_is_the_same_everywhere():
    from stratadvisor import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
