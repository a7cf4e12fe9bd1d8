"""The wheel holds rules, templates and types, and works from anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
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


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel into an environment of its own that finds the dependencies of this one; return its ``bin``."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=300)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, timeout=600, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    # Behind its own packages; files named there (an editable install of the checkout) are not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return home / "bin"


@pytest.mark.process
def test_the_installed_commands_do_the_main_job_outside_of_the_checkout(installed, tmp_path):
    environment = {"PATH": f"{installed}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}

    def start(*arguments: str) -> str:
        done = subprocess.run(
            arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=550
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    where = Path(start(str(installed / "python"), "-c", "import stratadvisor; print(stratadvisor.__file__)").strip())
    assert where.is_relative_to(installed.parent)
    command = str(installed / "stratadvisor")
    probed = json.loads(start(command, "probe", "--quick", "--output", "cluster.json", "--json"))
    assert probed["nodes"][0]["hostname"] in (tmp_path / "cluster.json").read_text(encoding="utf-8")
    start(command, "recommend", "--model-size", "1M", "--cluster", "cluster.json", "--output", "bundle")
    limits = ["--time-limit", "500", "--stall-limit", "400"]
    (result,) = json.loads(start(command, "run-config", "bundle", "--steps", "4", "--json", *limits))["results"]
    assert result["outcome"] == "completed"
    assert result["steps_done"] == 4
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}', encoding="utf-8")
    start(command, "check", "ds.json")


def test_the_readme_names_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make run" in readme
    assert "make test" in readme


def test_version_is_the_same_everywhere():
    from stratadvisor import __version__

    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
