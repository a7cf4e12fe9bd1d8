"""Templates of an overlay are rendered in a process of their own, with a budget of time, memory and output.

The sandbox decides what a template may do; this decides how much of it. The child has no environment variables, may
write no file (a limit of the kernel), and hands back text. Shipped templates are rendered without it: the child costs
a third of a second.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from stratadvisor.errors import EmitError
from stratadvisor.schema.emission import EmittedFile
from stratadvisor.schema.plan import Plan
from stratadvisor.schema.profile import ClusterProfile
from stratadvisor.store import first_line

CPU_SECONDS = 5
"""Processor time; a bundle takes half a second of it."""
WALL_SECONDS = 600.0
MEMORY_BYTES = 2 * 1024**3
"""Address space of the child."""
OUTPUT_BYTES = 16 * 1024**2
"""Of all files of a bundle that are not the plan or the cluster."""
_START = "import sys; sys.path[:] = {path!r}; from stratadvisor.emit.isolation import main; main()"
_MESSAGE_CHARACTERS = 2000


def render_apart(
    plan: Plan,
    profile: ClusterProfile,
    target: str | None,
    overlays: tuple[Path, ...],
    beside: tuple[str, ...] = (),
) -> tuple[EmittedFile, ...]:
    """Return what ``bundle.render_here`` returns, computed in a child process.

    Raises:
        EmitError: what the child found wrong, or the budget that its templates went over.

    """
    asked = {
        "plan": plan.model_dump(mode="json"),
        "profile": profile.model_dump(mode="json"),
        "target": target,
        "beside": list(beside),
        "overlays": [str(overlay.absolute()) for overlay in overlays],
        "limits": [CPU_SECONDS, MEMORY_BYTES, OUTPUT_BYTES],
    }
    path = [str(Path(entry).absolute()) for entry in sys.path]
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-B", "-X", "utf8", "-c", _START.format(path=path)],
            input=json.dumps(asked).encode(),
            capture_output=True,
            check=False,
            timeout=WALL_SECONDS,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise EmitError(f"templates of the overlays were not done after {WALL_SECONDS:.0f} s") from None
    except OSError as problem:
        raise EmitError(f"no process can be started for the templates of the overlays: {problem.strerror}") from None
    if ended.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise EmitError(
            f"templates of the overlays took more than {CPU_SECONDS} s of processor time or were ended by force",
            hint="look for loops in loops; a template prints, rules and facts compute",
        )
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        said = first_line(ended.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        raise EmitError(f"templates of the overlays ended their process ({ended.returncode}): {said}") from None
    if "error" in answer:
        raise EmitError(str(answer["error"]), hint=str(answer.get("hint", "")))
    return tuple(EmittedFile.model_validate(file) for file in answer["files"])


def _limit(cpu_seconds: int, memory_bytes: int) -> None:
    """Set the budget of this process; every limit is only ever lowered."""
    for kind, wanted in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def main() -> None:
    """Render what standard input asks for, and write the files or the error to standard output as JSON."""
    from stratadvisor.emit.bundle import render_here

    asked = json.load(sys.stdin)
    cpu_seconds, memory_bytes, output_bytes = asked["limits"]
    _limit(cpu_seconds, memory_bytes)
    try:
        files = render_here(
            Plan.model_validate(asked["plan"]),
            ClusterProfile.model_validate(asked["profile"]),
            asked["target"],
            tuple(Path(overlay) for overlay in asked["overlays"]),
            beside=tuple(asked["beside"]),
            output_bytes=output_bytes,
        )
        answer: dict[str, Any] = {"files": [file.model_dump(mode="json") for file in files]}
    except EmitError as problem:
        answer = {"error": problem.message[:_MESSAGE_CHARACTERS], "hint": problem.hint[:_MESSAGE_CHARACTERS]}
    except MemoryError:
        answer = {"error": f"templates of the overlays need more than {memory_bytes // 1024**2} MiB of memory"}
    sys.stdout.write(json.dumps(answer))
