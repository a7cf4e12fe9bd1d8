import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stratadvisor.errors import ProbeError, UsageError
from stratadvisor.probe import PROBES
from stratadvisor.probe.run import probe_node
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.store import dump, read_profile, write_document

HELPERS = str(Path(__file__).resolve().parent.parent)
GENEROUS = 600.0


def readings(value: Any, where: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every reading of a dumped profile with its place."""
    if isinstance(value, dict):
        if set(value) == {"value", "origin", "detail"}:
            return [(where, value)]
        return [found for key, item in value.items() for found in readings(item, f"{where}.{key}")]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in readings(item, f"{where}[{index}]")]
    return []


@pytest.mark.process
def test_a_quick_probe_of_this_machine_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, probe in PROBES.items():  # whatever else runs here: this test asks what is found, not how fast
        monkeypatch.setitem(PROBES, name, replace(probe, limit_seconds=GENEROUS))
    told: list[tuple[str, float | None]] = []
    profile = probe_node(
        quick=True,
        storage_path=tmp_path,
        progress=lambda title, share: told.append((title, share)),
        time_limit_seconds=GENEROUS,
    )
    assert {o.probe for o in profile.observations} == set(PROBES)
    driven = {o.status for o in profile.observations if o.probe not in ("nvml", "rocm")}
    assert driven <= {"ok", "unsupported"}
    assert all(o.reason for o in profile.observations if o.status != "ok")

    (node,) = profile.nodes
    assert node.devices
    for device in node.devices:
        assert device.matmul_flops_per_second["fp32"].origin == "measured"
        assert device.memory_bandwidth_bytes_per_second.origin == "measured"
        assert device.memory_total_bytes.known
    assert node.cpu.usable_cores.known
    assert node.host_memory.bandwidth_bytes_per_second.origin == "measured"
    assert node.data_feed.item_seconds.origin == "measured"
    assert set(node.data_feed.items_per_second_by_workers) >= {0, 1}
    assert node.speed_variation.origin == "measured"
    assert [s.path for s in node.storage] == [str(tmp_path)]
    assert node.storage[0].read_bytes_per_second.origin == "measured"
    if len(node.devices) > 1:
        (sweep,) = profile.collectives
        assert sweep.world_size == len(node.devices)
        assert len(sweep.points) >= 2
        assert sweep.latency_seconds.known
        assert sweep.latency_seconds.value != 0

    found = readings(json.loads(dump(profile)))
    for place, reading in found:
        assert reading["value"] is not None or reading["detail"], f"{place} is unknown without a reason"
        # Only what may truly be none is zero: no swap, no locked memory, timings that were all equal.
        if reading["value"] == 0:
            assert place.rpartition(".")[2] in ("swap_total_bytes", "memlock_bytes", "speed_variation"), place
        if reading["origin"] == "measured":
            assert reading["detail"], f"{place} does not say how it was measured"

    file = tmp_path / "profile.json"
    write_document(file, profile)
    # a file keeps twelve digits of every number, and orders names
    assert json.loads(dump(read_profile(file))) == json.loads(dump(profile))
    assert dump(ClusterProfile.model_validate_json(dump(profile))) == dump(profile)
    shares = [share for _, share in told]
    assert shares == sorted(shares, key=lambda share: share or 0.0)
    assert told[-1] == ("done", 1.0)


@pytest.mark.process
def test_what_hangs_or_dies_is_named_and_the_rest_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)
    for name, probe in PROBES.items():
        monkeypatch.setitem(PROBES, name, replace(probe, limit_seconds=GENEROUS))
    monkeypatch.setitem(PROBES, "nics", replace(PROBES["nics"], target="probe_targets:hang", limit_seconds=2.0))
    monkeypatch.setitem(PROBES, "host_memory", replace(PROBES["host_memory"], target="probe_targets:broken"))
    monkeypatch.setitem(PROBES, "compute", replace(PROBES["compute"], target="probe_targets:killed"))
    profile = probe_node(
        skip=("storage", "data_feed", "collectives"), quick=True, storage_path=tmp_path, time_limit_seconds=GENEROUS
    )
    status = {o.probe: o for o in profile.observations}
    assert status["nics"].status == "timed_out"
    assert status["host_memory"].status == "failed"
    assert status["compute"].status == "failed"
    assert "lack of memory" in status["compute"].reason
    assert {status[name].status for name in ("host_cpu", "software", "memory_bandwidth", "stability")} == {"ok"}
    assert status["storage"].status == "skipped"
    (node,) = profile.nodes
    assert node.nics == ()
    for device in node.devices:
        assert "lack of memory" in device.matmul_flops_per_second["fp32"].detail
        assert device.memory_bandwidth_bytes_per_second.origin == "measured"


@pytest.mark.process
def test_devices_that_are_lost_every_time_are_asked_no_more_and_every_gap_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS)
    for name, probe in PROBES.items():
        monkeypatch.setitem(PROBES, name, replace(probe, limit_seconds=GENEROUS))
    for name in ("compute", "collectives"):
        monkeypatch.setitem(PROBES, name, replace(PROBES[name], target="probe_targets:killed"))
    profile = probe_node(skip=("data_feed",), quick=True, storage_path=tmp_path, time_limit_seconds=GENEROUS)
    status = {o.probe: (o.status, o.reason) for o in profile.observations}
    assert set(status) == set(PROBES)
    assert status["stability"][0] == "ok"  # a CPU rank may have met a busy machine once
    assert status["memory_bandwidth"] == ("unsupported", "no device answered the measurements before")
    assert status["storage"][0] == "ok"
    for place, reading in readings(json.loads(dump(profile))):
        assert reading["value"] is not None or reading["detail"], f"{place} is unknown without a reason"


@pytest.mark.process
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is needed to compile the double of libnvidia-ml")
def test_accelerators_that_torch_cannot_use_stay_in_the_profile_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA: the described cards would be asked to compute")
    double = Path(HELPERS) / "nvml_double"
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(double / "nvml_double.c")], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("NVML_DOUBLE_MACHINE", str(double / "machines" / "h100x8_nvswitch.txt"))
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, probe in PROBES.items():
        monkeypatch.setitem(PROBES, name, replace(probe, limit_seconds=GENEROUS))
    profile = probe_node(skip=("data_feed", "storage"), quick=True, time_limit_seconds=GENEROUS)
    (node,) = profile.nodes
    assert [(d.index, d.kind, d.catalog_key) for d in node.devices] == [(i, "cuda", "H100-80GB-SXM") for i in range(8)]
    assert len(node.links) == 28
    assert profile.collectives == ()
    status = {o.probe: (o.status, o.reason) for o in profile.observations}
    for name in ("compute", "collectives", "host_link", "pairs", "stability"):
        assert status[name][0] == "unsupported"
        assert "CPUs only" in status[name][1]
    for device in node.devices:
        assert "CPUs only" in device.matmul_flops_per_second["fp32"].detail
    assert node.host_memory.bandwidth_bytes_per_second.origin == "measured"
    assert any(v.level == "problem" and v.subject.endswith(" torch") for v in profile.verdicts)


@pytest.mark.process
def test_the_parent_never_imports_torch() -> None:
    program = (
        "import sys\n"
        "from stratadvisor.probe.run import probe_node\n"
        "probe_node(only=('compute',), quick=True, time_limit_seconds=600)\n"
        "print([m for m in ('torch', 'pandas', 'pynvml') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=GENEROUS)
    assert done.stdout.strip() == "[]"


@pytest.mark.process
def test_no_result_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBES, "software", replace(PROBES["software"], target="no_such_module:collect"))
    with pytest.raises(ProbeError, match=r"software.*no_such_module"):
        probe_node(only=("software",), skip=("torch_devices",))


def test_wrong_names_and_paths_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        probe_node(only=("gpus",))
    for limit in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="time limit"):
            probe_node(time_limit_seconds=limit)
    with pytest.raises(ProbeError, match="does not exist"):
        probe_node(storage_path=tmp_path / "absent")
