from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from probe_trees import plant

from stratadvisor.probe import software

OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (builder)\nGCC: 12\n"
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\nGCC: 12\n"


def test_versions_here_agree_with_the_metadata_and_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from stratadvisor.probe import software; found = software.collect();"
        "print(found.versions['torch'], found.versions['python'], 'torch' in sys.modules, 'pynvml' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert result.stdout.split() == [version("torch"), platform.python_version(), "False", "False"]


def test_what_torch_was_built_for_agrees_with_torch() -> None:
    import torch

    expected = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    assert software.torch_build() == {name: text for name, text in expected.items() if text}


def test_the_driver_version_is_read_from_module_or_proc(tmp_path: Path) -> None:
    assert software.nvidia_driver(plant(tmp_path / "a", {"sys/module/nvidia/version": "550.54.15\n"})) == "550.54.15"
    opened = plant(tmp_path / "b", {"proc/driver/nvidia/version": OPEN_MODULE})
    closed = plant(tmp_path / "c", {"proc/driver/nvidia/version": CLOSED_MODULE})
    assert software.nvidia_driver(opened) == "570.124.06"
    assert software.nvidia_driver(closed) == "535.161.07"
    assert software.nvidia_driver(plant(tmp_path / "d", {"proc/driver/nvidia/version": "garbage"})) is None
    assert software.nvidia_driver(tmp_path / "none") is None


def test_what_is_not_there_is_named_as_missing(tmp_path: Path) -> None:
    found = software.collect(plant(tmp_path, {"sys/module/nvidia/version": "550.54.15\n"}))
    assert found.versions["driver"] == "550.54.15"
    assert {"rocm", "amdgpu", "linux"} <= set(found.missing)
    assert not set(found.missing) & set(found.versions)
