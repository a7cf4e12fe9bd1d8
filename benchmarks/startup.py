"""How long `stratadvisor recommend` takes as a whole process, from 8 to 100,000 devices, beside a bare interpreter.

    python benchmarks/startup.py [--repeats 7] [--output startup.md]

Each command runs alone, in turn, and the fastest, median and slowest wall times are printed; the last column is the
median against that of an interpreter that imports the same libraries and stops. Goals: at most 0.4 s for 8 devices,
1.5 s for 100,000 devices in mixed node classes, on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CLUSTERS = {
    8: "8xA100-80GB",
    64: "4x8xA100-80GB,4x8xH100-80GB",
    1_000: "75x8xA100-80GB,50x8xH100-80GB",
    10_000: "500x8xH100-80GB,500x8xA100-80GB,250x8xA100-40GB",
    100_000: "5000x8xH100-80GB,5000x8xA100-80GB,2500x8xA100-40GB",
}
LIBRARIES = "import typer, rich.console, pydantic, jinja2, json, tomllib"


def seconds(command: list[str]) -> float:
    """Return the wall time of one process that must succeed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    tool = [sys.executable, "-m", "stratadvisor"]
    lines = [
        "| devices | fastest s | median s | slowest s | against the libraries alone |",
        "| --: | --: | --: | --: | --: |",
    ]
    with tempfile.TemporaryDirectory() as folder:
        commands = {"libraries": [sys.executable, "-c", LIBRARIES]}
        for devices, gpus in CLUSTERS.items():
            first = Path(folder) / f"first-{devices}"
            made = [
                *tool,
                "recommend",
                "--model-size",
                "7B",
                "--gpus",
                gpus,
                "--inter-node",
                "400Gb/s",
                "-o",
                str(first),
            ]
            seconds(made)
            again = ["recommend", "--model-size", "7B", "--cluster", str(first / "cluster.json")]
            commands[str(devices)] = [*tool, *again, "-o", str(Path(folder) / f"again-{devices}"), "--force"]
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(arguments.repeats):
            for name, command in commands.items():
                times[name].append(seconds(command))
    base = median(times["libraries"])
    for name, found in times.items():
        row = f"{min(found):.2f} | {median(found):.2f} | {max(found):.2f} | {median(found) / base:.1f}"
        lines.append(f"| {name} | {row} |")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if arguments.output is not None:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
