"""The watchdog, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from plan_for_tests import small_plan

from stratadvisor.errors import StratadvisorError
from stratadvisor.schema.profile import ClusterProfile, NodeProfile
from stratadvisor.validate.launch import Limits, launch_environment, oom_kills
from stratadvisor.validate.run import run_bundle

PROFILE = ClusterProfile(nodes=(NodeProfile(hostname="a"),))
STEP = '{"event": "step", "step": %d, "loss": 2.0, "tokens": 8, "step_seconds": 0.1, "peak_device_bytes": 100}'


def bundle(tmp_path: Path, script: str) -> Path:
    (tmp_path / "launch.sh").write_text("set -eu\n" + textwrap.dedent(script))
    return tmp_path


def run(directory: Path, steps: int = 3, **limits: float):
    chosen = Limits(**({"total_seconds": 300, "stall_seconds": 120} | limits))
    return run_bundle(directory, small_plan(), PROFILE, steps=steps, limits=chosen)


def test_a_run_that_does_its_steps_completes(tmp_path):
    lines = "".join(f"echo '{STEP % i}' >> \"$STRATADVISOR_RUN_DIR/metrics.jsonl\"\n" for i in (1, 2, 3))
    end = 'echo \'{"event": "end", "steps": 3}\' >> "$STRATADVISOR_RUN_DIR/metrics.jsonl"\n'
    result = run(bundle(tmp_path, lines + end))
    assert (result.outcome, result.steps_done, result.cause) == ("completed", 3, None)


def test_steps_without_an_end_are_a_failure_even_with_exit_code_zero(tmp_path):
    result = run(bundle(tmp_path, f"echo '{STEP % 1}' >> \"$STRATADVISOR_RUN_DIR/metrics.jsonl\"\n"))
    assert (result.outcome, result.steps_done) == ("failed", 1)
    assert result.cause is not None


def test_a_silent_run_is_ended_with_its_children(tmp_path):
    directory = bundle(tmp_path, "sleep 600 &\necho $! > child\nwait\n")
    result = run(directory, stall_seconds=8)
    assert result.outcome == "hung"
    assert result.cause is not None
    assert result.cause.kind == "hang"
    assert not _alive(int((directory / "child").read_text()))


def test_a_hung_python_rank_shows_its_stack(tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import time\n\ndef waits_for_ever():\n    time.sleep(600)\n\nwaits_for_ever()\n"
    )
    result = run(bundle(tmp_path, '"$PYTHON" stuck.py\n'), stall_seconds=15)
    assert result.cause is not None
    assert any("waits_for_ever" in line for line in result.cause.evidence)


def test_a_talkative_run_is_ended_at_the_time_limit(tmp_path):
    result = run(bundle(tmp_path, "while true; do echo alive; sleep 0.2; done\n"), total_seconds=8)
    assert result.outcome == "hung"
    assert result.cause is not None
    assert "time limit" in result.cause.summary


def test_a_missing_launcher_is_said_so(tmp_path):
    with pytest.raises(StratadvisorError, match=r"launch\.sh does not exist"):
        run(tmp_path)


def test_a_linked_run_folder_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    directory = tmp_path / "bundle"
    directory.mkdir()
    bundle(directory, "true\n")
    (directory / "validation").symlink_to(outside)
    result_or_error: object
    try:
        result_or_error = run(directory)
    except StratadvisorError as error:
        result_or_error = error
    assert (outside / "precious").read_text() == "keep", result_or_error


def test_variables_of_an_outer_launcher_are_not_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")
    environment = launch_environment(tmp_path, {"EXTRA": "1"})
    assert "RANK" not in environment
    assert "WORLD_SIZE" not in environment
    assert environment["EXTRA"] == "1"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


RUN = """
import sys
from pathlib import Path
from plan_for_tests import small_plan
from stratadvisor.schema.profile import ClusterProfile, NodeProfile
from stratadvisor.validate.run import run_bundle
profile = ClusterProfile(nodes=(NodeProfile(hostname="a"),))
print("ready", flush=True)
result = run_bundle(Path(sys.argv[1]), small_plan(), profile, steps=3)
print(result.outcome, result.cause.kind)
"""


def interrupted(directory: Path, *delays: float) -> tuple[list[str], int]:
    """Run a bundle in a process of its own, send SIGINT after its rank started and after more delays; (said, rank)."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    child = directory / "child"
    deadline = time.monotonic() + 120
    while not (child.is_file() and child.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    for delay in delays:
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    return output.split(), int(child.read_text())


@pytest.mark.process
@pytest.mark.parametrize("delays", [(), (0.5,), (0.3, 0.3, 0.3)])
def test_an_interrupt_ends_the_ranks_and_is_reported(tmp_path, delays):
    """Also one that comes while the launcher is being started, and a second and third one while it is being ended."""
    script = "trap '' TERM INT\nsetsid sleep 600 &\necho $! > child\nwhile :; do sleep 0.1; done\n"
    said, rank = interrupted(bundle(tmp_path, script), *delays)
    assert said == ["ready", "interrupted", "interrupted"]
    assert not _alive(rank)


@pytest.mark.process
def test_a_rank_with_a_session_of_its_own_does_not_outlive_the_run(tmp_path):
    directory = bundle(tmp_path, "setsid sh -c 'echo $$ > child; exec sleep 600' &\nuntil [ -s child ]; do :; done\n")
    run(directory)
    assert not _alive(int((directory / "child").read_text()))


@pytest.mark.process
def test_a_stopped_rank_is_named(tmp_path):
    directory = bundle(tmp_path, "RANK=3 sh -c 'kill -STOP $$'\n")
    result = run(directory, stall_seconds=8)
    assert result.cause is not None
    assert result.cause.kind == "hang"
    assert "rank 3 is stopped" in result.cause.summary


@pytest.mark.process
def test_a_second_run_of_the_same_bundle_is_refused_and_the_first_goes_on(tmp_path):
    directory = bundle(tmp_path, "touch started\nuntil [ -e enough ]; do sleep 0.1; done\nexit 3\n")
    outcomes = []
    first = threading.Thread(target=lambda: outcomes.append(run(directory)))
    first.start()
    try:
        deadline = time.monotonic() + 120
        while not (directory / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(StratadvisorError, match="another run-config is running"):
            run(directory)
        assert first.is_alive()
    finally:
        (directory / "enough").touch()
        first.join(120)
    assert [outcome.exit_code for outcome in outcomes] == [3]
    assert run(directory).exit_code == 3  # and afterwards the bundle is free


V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
V2 = "low 0\nhigh 0\nmax 9\noom 8\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("group", "files", "kills"),
    [
        # version 2: the process's own group, not the root that another job's kills are counted in
        ("0::/user/job7\n", {"user/job7/memory.events": V2.format(2), "memory.events": V2.format(5)}, 2),
        # version 1
        (
            "5:cpu,cpuacct:/a\n4:memory:/slurm/job7\n0::/b\n",
            {"memory/slurm/job7/memory.oom_control": V1.format(3), "memory/memory.oom_control": V1.format(9)},
            3,
        ),
        # a container: the path is the host's, what is mounted is the group itself
        ("0::/docker/abc\n", {"memory.events": V2.format(4)}, 4),
        ("4:memory:/docker/abc\n", {"memory/memory.oom_control": V1.format(6)}, 6),
        # a group's name may hold a colon
        ("0::/machine/a:b\n", {"machine/a:b/memory.events": V2.format(1)}, 1),
        # nothing known is nothing counted; a line that is no number is passed over
        ("", {}, 0),
        ("0::/x\n", {"x/memory.events": "oom_kill many\n", "memory.events": V2.format(4)}, 4),
        ("garbage\n", {"memory.events": V2.format(4)}, 4),
    ],
)
def test_kills_for_memory_are_counted_in_the_process_s_own_group(tmp_path, group, files, kills):
    for name, text in {"proc/self/cgroup": group, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(tmp_path) == kills


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
