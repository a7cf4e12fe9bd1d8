"""Which GPUs a build of torch has kernels for, by the CUDA release it was built with.

Code for a compute capability runs on every later one of the same major number (CUDA C++ Programming Guide, binary
compatibility), so that the major numbers decide.
"""

from __future__ import annotations

import re

FIRST_RELEASE = {5: (6, 5), 6: (8, 0), 7: (9, 0), 8: (11, 0), 9: (11, 8), 10: (12, 8), 11: (13, 0), 12: (12, 8)}
"""Major compute capability -> first CUDA release that compiles for it (release notes of the CUDA toolkit)."""
LAST_OF_VOLTA_AND_EARLIER = (12, 9)
"""CUDA 13 compiles for compute capability 7.5 and later (release notes of CUDA 13.0)."""
TURING = (7, 5)


def lacking_kernels(capability: tuple[int, int] | None, cuda: str) -> str:
    """Return why a torch built with CUDA ``cuda`` ("12.4") cannot run a device; empty where it can, or nobody knows."""
    release = re.match(r"(\d{1,3})\.(\d{1,3})", cuda)
    if capability is None or release is None:
        return ""
    build = int(release[1]), int(release[2])
    named = f"{capability[0]}.{capability[1]}"
    first = FIRST_RELEASE.get(capability[0])
    if first is not None and build < first:
        return (
            f"torch was built with CUDA {cuda}, which has no kernels for compute capability {named}:"
            f" it needs a build with CUDA {first[0]}.{first[1]} or later"
        )
    if capability < TURING and build > LAST_OF_VOLTA_AND_EARLIER:
        return (
            f"torch was built with CUDA {cuda}, which has no kernels for compute capability {named} any more:"
            " it needs a build with CUDA 12"
        )
    return ""
