"""A cluster that changed since the plan: what is told, and that run-config refuses it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from case_nvml import library
from plan_for_tests import small_shape

from stratadvisor import pipeline
from stratadvisor.cli import run
from stratadvisor.errors import DriftError
from stratadvisor.schema.base import measured, reported, unknown
from stratadvisor.schema.profile import (
    ClusterProfile,
    CpuProfile,
    DeviceProfile,
    HostMemoryProfile,
    NodeProfile,
)
from stratadvisor.validate.drift import changes

GIB = 2**30
THEN = "2026-01-01T00:00:00+00:00"


def card(index: int = 0, **more: object) -> DeviceProfile:
    fields = {"kind": "cuda", "name": "A100", "memory_total_bytes": reported(40 * GIB), "uuid": f"GPU-{index}"}
    return DeviceProfile.model_validate({"index": index, **fields, **more})


def node(*devices: DeviceProfile, hostname: str = "n1", cores: int = 8, memory: float = 64 * GIB, limit: float = 0):
    return NodeProfile(
        hostname=hostname,
        devices=devices,
        cpu=CpuProfile(usable_cores=reported(cores)),
        host_memory=HostMemoryProfile(
            total_bytes=reported(memory), limit_bytes=reported(limit) if limit else unknown("no limit")
        ),
    )


def seen(*nodes: NodeProfile) -> ClusterProfile:
    return ClusterProfile(nodes=nodes, captured_at=THEN)


def test_the_same_machine_has_not_changed():
    assert changes(seen(node(card(0), card(1))), node(card(0), card(1))) == ()


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (node(card(0)), "A100: 2 then, 1 now"),
        (node(card(0), card(1), card(2)), "A100: 2 then, 3 now"),
        (node(card(0), card(1, name="H100")), "A100: 2 then, 1 now|H100: 0 then, 1 now"),
        # a MIG slice of 20 GiB where a whole card of 40 was
        (node(card(0), card(1, memory_total_bytes=reported(20 * GIB))), r"device 1 \(A100\): 40 GiB then, 20 GiB now"),
        (node(card(0), card(1, healthy=False, health_reason="XID 79")), "device 1 .* not usable now: XID 79"),
        (node(card(0), card(1), memory=32 * GIB), "host memory: 64 GiB then, 32 GiB now"),
        (node(card(0), card(1), limit=16 * GIB), "host memory: 64 GiB then, 16 GiB now"),
    ],
)
def test_what_changed_is_said_in_numbers(now, said):
    import re

    found = changes(seen(node(card(0), card(1))), now)
    assert found
    for part in said.split("|"):
        assert any(re.search(part, line) for line in found), found


def test_mig_switched_on_is_a_change():
    before = seen(node(card(0, mig_enabled=False)))
    assert changes(before, node(card(0, mig_enabled=True))) == ("device 0 (A100): MIG is on now",)


@pytest.mark.parametrize(
    "now",
    [
        node(card(0), card(1), memory=63 * GIB),  # a kernel that reserves a little more
        node(card(0, memory_total_bytes=reported(39.6 * GIB)), card(1)),
        node(card(0, memory_total_bytes=unknown("denied")), card(1)),
        node(card(0), card(1), cores=4),  # processors do not train here
    ],
)
def test_small_or_unknown_differences_are_none(now):
    assert changes(seen(node(card(0), card(1))), now) == ()


def test_a_trouble_that_was_known_is_no_change():
    ill = card(0, healthy=False, health_reason="XID 79")
    assert changes(seen(node(ill)), node(ill)) == ()


def test_cores_count_where_processors_train():
    assert changes(seen(node(cores=8)), node(cores=4)) == ("usable cores: 8 then, 4 now",)


def test_another_machine_or_a_cluster_file_says_nothing_about_this_one():
    other = node(card(0, uuid="GPU-other"), hostname="elsewhere")
    assert changes(seen(node(card(0), card(1))), other) == ()
    assert changes(ClusterProfile(nodes=(node(card(0), card(1)),)), node(card(0))) == ()


def test_a_machine_with_a_new_name_is_known_by_its_cards():
    assert changes(seen(node(card(0), card(1))), node(card(0), hostname="renamed")) == ("A100: 2 then, 1 now",)


def this_machine(cores: int) -> ClusterProfile:
    """Return a profile of this machine; its rates are no matter, its number of cores is what the test chooses."""
    device = {
        "kind": "cpu",
        "name": "processor",
        "memory_total_bytes": reported(6 * GIB),
        "memory_free_bytes": reported(6 * GIB),
        "unified_memory": True,
        "matmul_flops_per_second": {"fp32": measured(5e10)},
        "memory_bandwidth_bytes_per_second": measured(8e9),
    }
    here = NodeProfile(
        hostname=socket.gethostname(),
        devices=tuple(DeviceProfile.model_validate({**device, "index": i}) for i in range(2)),
        cpu=CpuProfile(usable_cores=reported(cores)),
        host_memory=HostMemoryProfile(available_bytes=reported(12 * GIB), shared_memory_free_bytes=reported(GIB)),
        intra_node_bytes_per_second=measured(1e9),
    )
    return ClusterProfile(nodes=(here,), captured_at=THEN)


def planned(profile: ClusterProfile, folder: Path) -> Path:
    workload = pipeline.make_workload(small_shape(), sequence_length=32, global_batch_size=8, precision="fp32")
    pipeline.write_bundle(pipeline.recommend(profile, workload, strategy="ddp"), folder / "bundle")
    return folder / "bundle"


@pytest.mark.process
def test_run_config_refuses_a_machine_that_changed_and_runs_it_when_told(tmp_path, capsys):
    cores = len(os.sched_getaffinity(0))
    directory = planned(this_machine(cores + 64), tmp_path)
    assert run(["run-config", str(directory)]) == DriftError.exit_code
    said = capsys.readouterr().err
    assert f"usable cores: {cores + 64} then, " in said
    assert "--accept-drift" in said
    assert not (directory / "validation").exists()
    (directory / "launch.sh").write_text("exit 3\n")  # what runs is no matter, that it runs is
    assert run(["run-config", str(directory), "--accept-drift"]) == 8
    assert "exit code 3" in capsys.readouterr().err


CARD = """device
  name NVIDIA A100-PCIE-40GB
  uuid GPU-0000008{0}-1c0f-4a51-9d3e-01234567898{0}
  bus 00000000:{0}1:00.0
  memory_mib 40960 40442
  compute_capability 8 0
"""


@pytest.mark.process
def test_a_card_that_is_gone_is_refused_by_name(tmp_path):
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library(tmp_path / "library")),
        "NVML_DOUBLE_MACHINE": str(tmp_path / "machine.txt"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def tool(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stratadvisor", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=500)

    (tmp_path / "machine.txt").write_text(CARD.format(1) + CARD.format(2))
    only = [word for name in ("host_cpu", "host_memory", "nvml") for word in ("--only", name)]
    assert tool("probe", *only).returncode == 0
    assert tool("recommend", "--model-size", "350M", "--cluster", "cluster.json", "-o", "b").returncode == 0
    (tmp_path / "machine.txt").write_text(CARD.format(1))
    done = tool("run-config", "b")
    assert done.returncode == DriftError.exit_code, done.stderr
    assert "NVIDIA A100-PCIE-40GB: 2 then, 1 now" in done.stderr
