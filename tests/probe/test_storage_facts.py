from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from probe_trees import plant

from stratadvisor.probe import storage_facts

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:40 / /data rw - nfs4 server:/data rw
31 30 259:0 / /data/fast\\040disk rw - xfs /dev/nvme0n1 rw
32 22 0:41 / /data rw - lustre mgs:/fs rw
"""


def test_the_longest_and_latest_mount_names_the_file_system(tmp_path: Path) -> None:
    root = plant(tmp_path, {"proc/self/mountinfo": MOUNTS})
    assert storage_facts.filesystem_of(PurePosixPath("/home/me"), root) == "ext4"
    assert storage_facts.filesystem_of(PurePosixPath("/data/set"), root) == "lustre"
    assert storage_facts.filesystem_of(PurePosixPath("/data/fast disk/set"), root) == "xfs"
    assert storage_facts.filesystem_of(PurePosixPath("/database"), root) == "ext4"


def test_free_space_agrees_with_the_system_and_a_missing_path_has_a_reason(tmp_path: Path) -> None:
    found = storage_facts.collect(tmp_path)
    numbers = os.statvfs(tmp_path)
    assert found.free_bytes.value is not None
    assert (
        abs(found.free_bytes.value - numbers.f_bavail * numbers.f_frsize) <= 0.5 * numbers.f_blocks * numbers.f_frsize
    )
    missing = storage_facts.collect(tmp_path / "not there")
    assert missing.free_bytes.value is None
    assert "No such file" in missing.free_bytes.detail
    assert not found.read_bytes_per_second.known
