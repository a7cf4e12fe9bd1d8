"""A scheduler's SIGTERM and a lost terminal end a command as Ctrl-C does: clean, with one sentence and code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.process
PROBE = ["probe", "--only", "host_cpu", "--only", "compute", "-o", "p.json"]


def started(folder: Path, command: list[str], *ignored: signal.Signals) -> subprocess.Popen[str]:
    def dispositions() -> None:  # pytest itself may have been started by a shell that ignores some
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return subprocess.Popen(
        [sys.executable, "-m", "stratadvisor", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=dispositions,  # noqa: PLW1509 - no threads run here
    )


def measuring(process: subprocess.Popen[str]) -> list[psutil.Process]:
    end = time.monotonic() + 200
    while time.monotonic() < end:
        children = psutil.Process(process.pid).children(recursive=True)
        if children:
            return children
        time.sleep(0.05)
    raise AssertionError("nothing was measured")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_probe_ends_with_a_sentence_and_leaves_nothing(tmp_path, number):
    process = started(tmp_path, PROBE)
    children = measuring(process)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stratadvisor: interrupted\n" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def test_what_nohup_chose_is_kept(tmp_path):
    process = started(tmp_path, [*PROBE[:3], "-o", "p.json"], signal.SIGHUP)
    measuring(process)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert (tmp_path / "p.json").is_file()


def test_run_config_ends_its_ranks_and_keeps_the_result(tmp_path):
    from plan_for_tests import small_shape

    from stratadvisor import pipeline

    cluster = pipeline.load_cluster(cluster=None, gpus="1xT4", inter_node=None, intra_node=None)
    workload = pipeline.make_workload(small_shape(), sequence_length=32, global_batch_size=8)
    plan = pipeline.recommend(cluster, workload, strategy="single")
    directory = tmp_path / "bundle"
    pipeline.write_bundle(plan, directory)
    # the plan is for a GPU; as a plan for processors this machine runs it without being measured
    import json

    document = json.loads((directory / "plan.json").read_text())
    document["device_kind"] = "cpu"
    (directory / "plan.json").write_text(json.dumps(document))
    (directory / "launch.sh").write_text("setsid sleep 600 &\necho $! > child\nwait\n")
    process = started(tmp_path, ["run-config", "bundle", "--accept-drift"])
    end = time.monotonic() + 200
    while not (directory / "child").is_file() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "stratadvisor: interrupted\n" in said
    assert json.loads((directory / "validation" / "result.json").read_text())["results"][0]["outcome"] == "interrupted"
    child = int((directory / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
