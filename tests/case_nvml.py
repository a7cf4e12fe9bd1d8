"""The real pynvml in a process of its own, on the C double of libnvidia-ml, for a machine written as text."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from stratadvisor.schema.profile import DeviceLink, DeviceProfile, Observation

DOUBLE = Path(__file__).parent / "nvml_double"
LOOK = """
import json, sys
from pathlib import Path
from stratadvisor.probe import nvml
environ, root = json.loads(sys.argv[1])
devices, links, observations = nvml.collect(environ, Path(root), patience_seconds=250)
print(json.dumps([[x.model_dump(mode="json") for x in part] for part in (devices, links, observations)]))
"""


class Look(NamedTuple):
    devices: list[DeviceProfile]
    links: list[DeviceLink]
    observations: list[Observation]

    @property
    def reasons(self) -> str:
        return " | ".join(o.reason for o in self.observations)


@cache
def library(folder: Path) -> Path:
    """Return the folder with the compiled double."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the double of libnvidia-ml cannot be compiled")
    folder.mkdir(exist_ok=True)
    target = folder / "libnvidia-ml.so.1"
    source = str(DOUBLE / "nvml_double.c")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-o", str(target), source], check=True, timeout=300)
    return folder


def look(machine: str, folder: Path, root: Path, environ: dict[str, str] | None = None) -> Look:
    """Return what the probe reads of a machine: a text, or the name of one beside the double."""
    described = DOUBLE / "machines" / f"{machine}.txt"
    if "\n" in machine:
        described = folder / "machine.txt"
        described.write_text(machine)
    kept = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "NVML_DOUBLE_MACHINE")}
    kept |= {"NVML_DOUBLE_MACHINE": str(described), "LD_LIBRARY_PATH": str(library(folder / "library"))}
    command = [sys.executable, "-c", LOOK, json.dumps([environ or {}, str(root)])]
    result = subprocess.run(command, env=kept, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    devices, links, observations = json.loads(result.stdout)
    return Look(
        [DeviceProfile.model_validate(x) for x in devices],
        [DeviceLink.model_validate(x) for x in links],
        [Observation.model_validate(x) for x in observations],
    )
