"""A launch script that is asked to stop ends with a checkpoint and the exit code 0."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runtime_bundle import ROOT, TIMEOUT_SECONDS, environment, events, group, make_bundle

pytestmark = pytest.mark.process
LAUNCHER = ROOT / "tests" / "emit" / "golden" / "ddp_cpu" / "launch.sh"


@pytest.mark.parametrize("whom", ["script", "everybody"])
def test_a_launch_script_that_is_asked_to_stop_saves_and_succeeds(tmp_path: Path, whom: str) -> None:
    one = group(devices_per_node=2, micro_batch_size=2, gradient_accumulation_steps=2, batch_per_device=4)
    bundle = make_bundle(tmp_path / "bundle", engine="ddp", groups=[one], total_steps=0)
    shutil.copy(LAUNCHER, bundle / "launch.sh")
    own = {"PYTHON": sys.executable, "NPROC_PER_NODE": "2"}
    started = subprocess.Popen(
        ["bash", str(bundle / "launch.sh")],
        env=environment() | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    metrics = bundle / "run" / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT_SECONDS / 2
    while not (metrics.is_file() and metrics.read_text().count('"event": "step"') > 3):
        assert started.poll() is None, started.communicate()[0]
        assert time.monotonic() < deadline, "no step was ever done"
        time.sleep(0.2)
    if whom == "script":
        started.send_signal(signal.SIGTERM)
    else:
        os.killpg(started.pid, signal.SIGTERM)
    said = started.communicate(timeout=TIMEOUT_SECONDS)[0]
    assert started.returncode == 0, said
    assert "asked to stop: a checkpoint is written first" in said
    (end,) = events(bundle, "end")
    assert end["reason"] == "interrupted"
    last = events(bundle)[-1]["step"]
    assert (bundle / "run" / "checkpoints" / f"step-{last:08d}" / "meta.json").is_file()
