"""Versions from package metadata, version files and the kernel. Nothing heavy is imported."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from stratadvisor.probe.files import read_line, read_text
from stratadvisor.schema.profile import SoftwareProfile

DISTRIBUTIONS = (
    "stratadvisor",
    "torch",
    "deepspeed",
    "accelerate",
    "transformers",
    "peft",
    "bitsandbytes",
    "torchao",
    "flash-attn",
    "numpy",
    "nvidia-ml-py",
)
"""Distributions whose versions bear on what can be emitted or run."""


def _distribution(name: str) -> str | None:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError, OSError):
        return None


def torch_build() -> dict[str, str]:
    """Return ``cuda`` and ``hip`` as torch was built for them, from its version file; empty without torch."""
    try:
        spec = find_spec("torch")
    except (ImportError, ValueError):
        return {}
    origin = spec.origin if spec is not None else None
    text = (read_text(Path(origin).with_name("version.py")) or "") if origin else ""
    found = re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"\n]+)['\"]", text, re.MULTILINE)
    return dict(found)


def nvidia_driver(root: Path) -> str | None:
    """Return the version of the loaded NVIDIA kernel module; None when none is loaded."""
    module = read_line(root / "sys/module/nvidia/version")
    if module:
        return module
    text = read_text(root / "proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+([0-9]+(?:\.[0-9]+)+)", text)
    return match.group(1) if match else None


def _nccl() -> str | None:
    for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11", "nvidia-nccl"):
        version = _distribution(name)
        if version:
            return version
    return None


def collect(root: Path = Path("/")) -> SoftwareProfile:
    """Return what is installed, and what was looked for and is not there."""
    looked: dict[str, str | None] = {"python": platform.python_version()}
    looked |= {name: _distribution(name) for name in DISTRIBUTIONS}
    build = torch_build()
    looked["cuda"], looked["hip"] = build.get("cuda"), build.get("hip")
    looked["nccl"] = _nccl()
    looked["driver"] = nvidia_driver(root)
    looked["amdgpu"] = read_line(root / "sys/module/amdgpu/version")
    looked["rocm"] = read_line(root / "opt/rocm/.info/version")
    looked["linux"] = read_line(root / "proc/sys/kernel/osrelease") or (
        platform.release() if root == Path("/") else None
    )
    return SoftwareProfile(
        versions={name: version for name, version in looked.items() if version},
        missing=tuple(name for name, version in looked.items() if not version),
    )
