"""Fuzz for a while: ``python -m fuzz --seconds 600`` shares the time between all targets, or give some by name.

New inputs that reach new code go into ``fuzz/corpus/TARGET``; an input that fails is kept there as well, under the name
``found-...``, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
INPUT_BYTES = 16384
SLOW_SECONDS, RSS_MIB = 20, 2048


def main() -> int:
    """Read the command line; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    if sys.argv[1:2] == ["--one"]:  # the process that libFuzzer takes over
        return _child(sys.argv[2], sys.argv[3:])
    options = parser.parse_args()
    from fuzz.targets import TARGETS

    names = options.targets or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    found = 0
    for name in names:
        found += _fuzz(name, max(5, options.seconds / len(names)))
    return 1 if found else 0


def _child(name: str, libfuzzer: list[str]) -> int:
    import atheris

    with atheris.instrument_imports(include=["stratadvisor"]):
        from fuzz import targets
    atheris.Setup([sys.argv[0], *libfuzzer], lambda data: targets.attempt(name, data))  # type: ignore[arg-type,return-value]
    atheris.Fuzz()
    return 0


def _libfuzzer(name: str, *arguments: str, limit: float) -> tuple[int, str]:
    """Run libFuzzer on a target; returns its code and what it said."""
    words = [sys.executable, "-m", "fuzz", "--one", name, *arguments]
    done = subprocess.run(
        words, capture_output=True, text=True, errors="replace", timeout=limit, check=False, cwd=HERE.parent
    )
    return done.returncode, done.stdout + done.stderr


def _fuzz(name: str, seconds: float) -> int:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    before = len(list(folder.iterdir()))
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as fresh:
        code, said = _libfuzzer(
            name,
            fresh,
            str(folder),
            f"-max_total_time={int(seconds)}",
            f"-max_len={INPUT_BYTES}",
            f"-timeout={SLOW_SECONDS}",
            f"-rss_limit_mb={RSS_MIB}",
            f"-artifact_prefix={kept}/",
            limit=seconds + 300,
        )
        crashes = list(Path(kept).iterdir())
        for crash in crashes:
            _keep(crash, folder, "found-")
        for new in Path(fresh).iterdir():
            _keep(new, folder, "")
    runs = [line for line in said.splitlines() if line.startswith("#") and "exec/s" in line]
    record = {
        "target": name,
        "seconds": round(time.monotonic() - began, 1),
        "executions": int(runs[-1].split()[0].lstrip("#")) if runs else 0,
        "corpus": [before, len(list(folder.iterdir()))],
        "found": len(crashes),
    }
    print(json.dumps(record), flush=True)
    if crashes or code:
        print("\n".join(said.splitlines()[-60:]), file=sys.stderr, flush=True)
    return len(crashes)


def _keep(file: Path, folder: Path, prefix: str) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    shutil.copyfile(file, folder / f"{prefix}{digest}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(HERE.parent))
    sys.exit(main())
