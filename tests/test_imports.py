"""What a light command may import, seen from a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stratadvisor.cli import run

HEAVY = {"torch", "pandas", "pynvml", "psutil", "numpy", "deepspeed", "transformers"}
PROGRAM = """
import json, sys
from stratadvisor.cli import run
code = run(sys.argv[1:])
sys.stdout.flush()
sys.stderr.write("\\nMODULES " + json.dumps([code, sorted({m.split(".")[0] for m in sys.modules})]))
"""


def modules_of(arguments: list[str]) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    code, modules = json.loads(done.stderr.rpartition("MODULES ")[2])
    return code, set(modules)


@pytest.fixture
def profile(tmp_path) -> Path:
    out = tmp_path / "first"
    assert run(["recommend", "--model-size", "7B", "--gpus", "8xA100-80GB", "--output", str(out), "--json"]) == 0
    return out / "cluster.json"


def test_recommend_from_a_saved_profile_imports_no_heavy_library(profile, tmp_path):
    code, modules = modules_of(
        ["recommend", "--model-size", "7B", "--cluster", str(profile), "--output", str(tmp_path / "b")]
    )
    assert code == 0
    assert modules & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--version"], ["rules", "list"], ["recommend", "--help"]])
def test_light_commands_import_no_heavy_library(arguments):
    code, modules = modules_of(arguments)
    assert code == 0
    assert modules & HEAVY == set()


def test_importing_the_package_costs_nothing():
    program = "import sys, stratadvisor; print(sorted(m for m in sys.modules if m in ('rich', 'typer', 'pydantic')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
