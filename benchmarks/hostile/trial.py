"""Run one command line in a forked process that is watched: everything it opens to write, its time, its memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MEMORY_BYTES = 4 * 2**30
"""Of written memory; what needs more is a fault of its own."""
PATIENCE_SECONDS = 300
DOCUMENTED_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
"""Of ``stratadvisor --help``, less 70 (a fault of stratadvisor itself) and 130 (interrupted)."""
_WRITING = {
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.link": ((1, 3),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
}
"""Audit events of Python that change files: which arguments are paths, and which the folders they are relative to."""


@dataclass
class Trial:
    """One input: what is run, where it may write."""

    kind: str
    name: str
    command: Sequence[object]
    may_write: tuple[str, ...] = ()
    """Below the trial's folder."""
    prepare: Callable[[Path], object] | None = None
    """Puts files into the trial's folder, which is the working directory."""
    environ: Mapping[str, str] = field(default_factory=dict)
    call: Callable[[Path], object] | None = None
    """Run in place of a command: a reader that no command reaches without a cluster."""
    looks: Callable[[Path], str] | None = None
    """Looks afterwards for what must not have happened; an empty text is good."""


@dataclass
class Outcome:
    """What came of it."""

    code: int
    said: str
    seconds: float
    peak_bytes: int
    outside: list[str]
    wrong: list[str]


def run(trial: Trial, folder: Path) -> Outcome:
    """Run a trial in ``folder``, which is empty."""
    place, temporary = folder / "place", folder / "tmp"
    place.mkdir()
    temporary.mkdir()
    if trial.prepare is not None:
        trial.prepare(place)
    before = _tree(folder)
    log, told = folder / "log", folder / "written"
    begin = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _child(trial, place, temporary, log, told)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begin
    code = os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace") if log.is_file() else ""
    written = os.fsdecode(told.read_bytes()).split("\n")[:-1] if told.is_file() else []
    allowed = [place / name for name in trial.may_write]
    changed = [name for name in _changes(before, _tree(folder)) if not _within(folder / name, allowed, temporary)]
    outside = sorted({path for path in written if not _within(Path(path), allowed, temporary)} | set(changed))
    wrong = _wrong(trial, code, said)
    if trial.looks is not None:
        wrong += [found] if (found := trial.looks(place)) else []
    return Outcome(code, said, seconds, usage.ru_maxrss * 1024, outside, wrong)


def _wrong(trial: Trial, code: int, said: str) -> list[str]:
    found = []
    if code == -signal.SIGALRM:
        found.append(f"no end within {PATIENCE_SECONDS} s")
    elif code not in DOCUMENTED_CODES:
        found.append(f"exit code {code}")
    if "Traceback (most recent call last)" in said:
        found.append("a traceback")
    moved = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]", said)
    if moved:
        found.append(f"a sign that moves a terminal: {moved[0]!r}")
    if code and trial.call is None and trial.command[0] != "rules":
        sentences = sum(line.startswith("stratadvisor: ") for line in said.splitlines())
        if sentences != 1:
            found.append(f"{sentences} error sentences")
    return found


def _child(trial: Trial, place: Path, temporary: Path, log: Path, told: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.chdir(place)
        home = {"HOME": str(place), "TMPDIR": str(temporary), "COLUMNS": "100", "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ.update({**home, **trial.environ})
        import tempfile

        tempfile.tempdir = str(temporary)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        _watch(os.open(told, os.O_WRONLY | os.O_CREAT))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        signal.alarm(PATIENCE_SECONDS)
        if trial.call is not None:
            trial.call(place)
            code = 0
        else:
            from stratadvisor.cli import run as command

            code = command(
                [os.fsdecode(os.fspath(a)) if isinstance(a, (bytes, Path)) else str(a) for a in trial.command]
            )
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if 0 <= code < 256 else 70)


def _watch(handle: int) -> None:
    """Write down every path that this process opens to write, makes, moves or removes from now on."""

    def tell(path: object, folder: object = -1) -> None:
        if isinstance(path, (str, bytes, os.PathLike)):
            base = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) and folder >= 0 else os.getcwd()
            line = os.path.join(base, os.fsdecode(path)).replace("\n", "?")
            os.write(handle, os.fsencode(line) + b"\n")

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            asked = flags if isinstance(flags, int) else 0
            if asked & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or (isinstance(mode, str) and set(mode) & set("wax+")):
                tell(path)
        elif event in _WRITING:
            for at, folder in _WRITING[event]:
                tell(arguments[at], arguments[folder] if folder is not None else -1)

    sys.addaudithook(hook)


def _within(path: Path, allowed: Sequence[Path], temporary: Path) -> bool:
    text = Path(os.path.normpath(path))
    if text == Path(os.devnull) or (text.parent == temporary.parent and text.name in ("log", "written")):
        return True
    if text == temporary.parent / "place":
        return True  # asked to be there, which it is
    real = text.parent.resolve() / text.name  # a link among the folders above leads elsewhere; _tree sees the last one
    for root in (*allowed, temporary):
        top = root.parent.resolve()
        if real == top / root.name or real.is_relative_to(top / root.name):
            return True
        # files are made beside their place and then moved there
        if real.is_relative_to(top) and real != top and real.relative_to(top).parts[0].startswith(f".{root.name}"):
            return True
    return False


def _tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return every path below a folder with what would change if somebody wrote there."""
    found: dict[str, tuple[object, ...]] = {}
    for where, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = os.path.join(where, name)
            status = os.lstat(path)
            relative = os.fsdecode(os.path.relpath(path, os.fsencode(folder)))
            found[relative] = (
                status.st_mode,
                status.st_size if name in files else 0,
                status.st_mtime_ns if name in files else 0,
            )
    return found


def _changes(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]
