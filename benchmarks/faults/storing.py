"""Faults while files are written and read: plans, profiles, the screen."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from benchmarks.faults import rig
from benchmarks.faults.rig import Fault, Job, Seen

ASK = ("recommend", "--model-size", "7B", "--gpus", "2x8xA100-80GB", "--inter-node", "200Gb/s")


def run(folder: Path, *arguments: object, within: tuple[str, ...] | list[str] = (), kept: str = "") -> Seen:
    """Run a command under a fault and return its sentence."""
    seen = rig.start(rig.tool(*arguments), folder, within=within).finish()
    seen.cause, seen.kept = rig.sentence(seen.said) or "none", kept
    return seen


def _planned(folder: Path) -> Path:
    place = folder / "bundle"
    subprocess.run([*map(str, rig.tool(*ASK, "--output", place))], cwd=rig.ROOT, check=True, capture_output=True)
    return place


def _tree(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def _killed_while_writing(folder: Path) -> Seen:
    """Kill the tool again and again while it replaces a bundle: every file is an old or a new one, none is half."""
    place = _planned(folder)
    whole = _tree(place)
    broken, seconds = set(), 0.0
    for attempt in range(6):
        job: Job = rig.start(rig.tool(*ASK, "--output", place, "--force"), folder)
        time.sleep(0.35 + 0.08 * attempt)
        if job.process.poll() is None:
            job.process.send_signal(signal.SIGKILL)
        seconds = max(seconds, job.finish(time.monotonic()).seconds)
        now = _tree(place)
        broken |= {name for name in whole if now.get(name) != whole[name]}
    return Seen(
        exit_code=-9, seconds=seconds, said="", cause=f"{len(broken)} files broken", kept=f"{len(whole)} files whole"
    )


def _full(folder: Path, size: str) -> Seen:
    script = f"mkdir {folder}/disk && mount -t tmpfs -o size={size} none {folder}/disk"
    seen = rig.start(rig.tool(*ASK, "--output", folder / "disk" / "b"), folder, within=rig.mounting(script)).finish()
    seen.cause, seen.kept = rig.sentence(seen.said), "answer on the screen" if seen.out else "nothing"
    return seen


def _closed(folder: Path) -> Seen:
    job = rig.start(rig.tool(*ASK, "--no-write"), folder, within=["sh", "-c", '"$@" >/dev/full', "sh"])
    seen = job.finish()
    seen.cause = rig.sentence(seen.said)
    return seen


def _newer(folder: Path) -> Seen:
    (folder / "c.json").write_text('{"schema_version": 99, "nodes": []}')
    return run(folder, "recommend", "--model-size", "7B", "--cluster", folder / "c.json", "--no-write")


def _half(folder: Path) -> Seen:
    place = _planned(folder)
    plan = place / "plan.json"
    plan.write_bytes(plan.read_bytes()[:1000])
    return run(folder, "explain", place)


S = "writing"
FAULTS = (
    Fault(
        "killed-while-writing",
        S,
        "the tool is killed while it replaces a bundle",
        "SIGKILL, six times at other moments",
        _killed_while_writing,
        r"^0 files broken",
        (-9,),
        "whole",
    ),
    Fault(
        "bundle-disk-full",
        S,
        "no room for the bundle",
        "a tmpfs of 64 kB",
        lambda f: _full(f, "64k"),
        r"No space left",
        (1, 7),
        "",
    ),
    Fault("screen-full", S, "standard output cannot be written", ">/dev/full", _closed, r"(?i)no space", (1,), ""),
    Fault(
        "newer-file",
        S,
        "a profile of a later release",
        "schema_version 99",
        _newer,
        r"schema version 99; this stratadvisor reads up to",
        (4,),
        "",
    ),
    Fault(
        "half-a-plan",
        S,
        "a plan cut off by another tool",
        "its first 1000 bytes",
        _half,
        r"plan\.json is not JSON",
        (1,),
        "",
    ),
)
