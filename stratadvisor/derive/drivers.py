"""Known defects of drivers."""

from __future__ import annotations

import re

from stratadvisor.schema.profile import NodeProfile

FIXED_DRIVER = (550, 40, 7)
"""GeForce RTX 40 drivers before this announce peer access without having it (NVIDIA/nccl-tests issue 117; Accelerate
checks for the same version)."""
_AFFECTED = re.compile(r"\bRTX 40[5-9]0\b")


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.13.0+cpu`` -> (2, 13, 0)."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def affected(node: NodeProfile) -> bool:
    """Whether a node has cards of the kind with the defect."""
    return any(_AFFECTED.search(d.name) for d in node.devices)


def peer_access_defect(node: NodeProfile) -> bool | None:
    """Whether the driver announces peer access that does not work; None where its version is not known."""
    if not affected(node):
        return False
    version = version_of(node.software.versions.get("driver", ""))
    return version < FIXED_DRIVER if version else None
