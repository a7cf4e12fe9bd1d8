"""Ranks that left the launcher's session and outlived it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stratadvisor.validate import strays

pytestmark = pytest.mark.process


def orphan(folder: Path, run_directory: Path) -> int:
    """Start a process with a session of its own whose parent is gone; return its number."""
    told = folder / f"pid-{run_directory.name}"
    subprocess.run(
        ["sh", "-c", f"setsid sh -c 'echo $$ > {told}.part; mv {told}.part {told}; exec sleep 600' >/dev/null 2>&1 &"],
        env={**os.environ, strays.VARIABLE: str(run_directory)},
        check=True,
    )
    return int(appears(told))


def appears(path: Path) -> str:
    end = time.monotonic() + 120
    while not (path.is_file() and path.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.05)
    return path.read_text()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_run_s_own_are_ended_and_another_run_s_are_not(tmp_path):
    mine, other = orphan(tmp_path, tmp_path / "mine"), orphan(tmp_path, tmp_path / "other")
    try:
        assert strays.end(tmp_path / "mine") == 1
        assert not alive(mine)
        assert alive(other)
    finally:
        assert strays.end(tmp_path / "other") == 1


def test_a_process_never_ends_itself_or_the_one_that_started_it(tmp_path):
    code = "import sys; from pathlib import Path; from stratadvisor.validate import strays; "
    code += "print(strays.end(Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, strays.VARIABLE: str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_child_is_asked_to_end_when_its_parent_is_killed(tmp_path):
    code = (
        "import os, signal, subprocess, sys\n"
        "from stratadvisor.validate.strays import prepare_child\n"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=lambda: prepare_child(()))\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "pid")], env=environ, timeout=300)
    child = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 60
    while alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(child)
